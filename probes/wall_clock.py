"""What tells of the wall clock, for probes and the agent: the first year that can be, and where timesyncd notes."""

EARLIEST_PLAUSIBLE_S = 1_735_689_600  # 2025-01-01: before this software was written, so the clock is not set
TIMESYNCD_STATE = "/run/systemd/timesync"  # systemd-timesyncd.service(8): `synchronized` is touched there
