"""Packages: dpkg's database is read; none is half installed, L4T's are complete and of one release, holds are told.

A package on hold is no fault: makers of carrier boards hold the kernel, so that NVIDIA's does not replace theirs. It is
a reading of milliseconds, taken anew each time: no finding about packages outlives a change of them.
"""

from __future__ import annotations

import errno

import msgspec

from probes import l4t_packages
from probes.contract import Evidence, Fact, Finding, Status, cut
from probes.dpkg import FOLDER, STATUS_FILE, STATUS_LIMIT_BYTES, Database, Package, lock_holder, read_database
from probes.host import Host
from probes.l4t_packages import PREFIX, Trouble, listed

LAYER = 1
COST_S = 0.2
CONFIGURE = "sudo dpkg --configure -a"
SETTLE = "sudo apt-get -f install"
NAMED = 100  # in a fact
RESTORE = (
    f"sudo cp {FOLDER}/status-old {STATUS_FILE} (as it was before the last change; older ones are "
    f"/var/backups/dpkg.status.*), then {CONFIGURE}"
)


def check(host: Host) -> Finding:
    """Read dpkg's database and compare L4T's packages with each other and with the release file.

    Returns: WORKS when all is whole, with a reason where something is held; BROKEN with the packages and the remedy;
        UNKNOWN while they are being changed, where the file is damaged or can't be read; ABSENT without dpkg.
    """
    try:
        database = read_database(host)
    except OSError as error:
        return unread(host, error)
    holder = lock_holder(host)
    damage = damaged(database)
    facts, found = l4t_packages.judge(host, database.packages, is_whole=not damage)
    facts = {**package_facts(database), **facts, "changed_now_by": holder or None}
    found = [*unfinished(database), *found, *half_removed(database), *held(database)]
    faults = [trouble for trouble in found if trouble.is_fault]
    status, told = Status.WORKS, found
    if faults and holder:
        busy = f"packages are being changed by {holder}"
        wait = ("wait until it has ended, then check again",)
        status = Status.UNKNOWN
        told = [Trouble(reason=busy, remedies=wait), *(Trouble(reason=trouble.reason) for trouble in faults)]
    elif faults:
        status, told = Status.BROKEN, [*damage, *found]
    elif damage:
        status, told = Status.UNKNOWN, [*damage, *found]
    elif holder:
        told = [*found, Trouble(reason=f"{holder} holds dpkg's lock")]
    return Finding(
        subject="packages",
        layer=LAYER,
        status=status,
        reason="; ".join(trouble.reason for trouble in told),
        remedy="; ".join(dict.fromkeys(step for trouble in told for step in trouble.remedies)),
        facts=facts,
        evidence=evidence(database),
    )


def unread(host: Host, error: OSError) -> Finding:
    """The finding where there is no status file to read."""
    missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
    status, remedy = Status.UNKNOWN, ""
    if missing and host.recorded:
        reason = f"the recorded device has no {STATUS_FILE}"
    elif missing and host.exists(f"{FOLDER}/status.d"):
        status, reason = Status.ABSENT, f"an image without dpkg: its packages are listed in {FOLDER}/status.d"
    elif missing and not host.exists(FOLDER):
        status, reason = Status.ABSENT, f"there is no {FOLDER}: this system is not made of Debian packages"
    elif missing:
        status, reason, remedy = Status.BROKEN, f"{STATUS_FILE} is missing: dpkg knows no package", RESTORE
    else:
        reason = f"{STATUS_FILE} can't be read: {error.strerror}"
        remedy = f"sudo chmod 644 {STATUS_FILE}" if error.errno == errno.EACCES else ""
    return Finding(subject="packages", layer=LAYER, status=status, reason=reason, remedy=remedy)


def damaged(database: Database) -> list[Trouble]:
    """What stands against believing the whole of the file."""
    if database.cut_off:
        size = f"{STATUS_LIMIT_BYTES >> 20} MiB"
        return [Trouble(reason=f"{STATUS_FILE} is longer than {size}: the rest was not read")]
    if database.damaged:
        reason = f"{STATUS_FILE} is damaged: {database.damaged} of its parts are no package"
        return [Trouble(reason=reason, remedies=(RESTORE,))]
    if not database.installed and not database.packages:
        return [Trouble(reason=f"{STATUS_FILE} lists no package", remedies=(RESTORE,))]
    return []


def stack_first(packages: list[Package]) -> list[Package]:
    """L4T's first, then the stack's, then the others."""
    return sorted(packages, key=lambda p: (PREFIX not in p.name, not p.is_of_stack))


def unfinished(database: Database) -> list[Trouble]:
    """Packages that dpkg has begun with, by what is to be done about them."""
    open_ones = stack_first([package for package in database.packages if package.is_unfinished])
    broken = [p for p in open_ones if p.flag != "ok" or p.state == "half-installed"]
    leaving = [p for p in broken if p.want in ("deinstall", "purge")]
    again = [p for p in broken if p not in leaving]
    found = []
    if database.journal:
        reason = f"dpkg was interrupted: unmerged entries in {FOLDER}/updates: {database.journal}"
        found.append(Trouble(reason=reason, remedies=(CONFIGURE,)))
    if again:
        step = f"sudo apt-get install --reinstall {' '.join(pinned(p) for p in again[:NAMED])}"
        found.append(Trouble(reason=f"half-installed: {listed(p.name for p in again)}", remedies=(step,)))
    if leaving:
        force = "--force-remove-reinstreq " if any(p.flag != "ok" for p in leaving) else ""
        step = f"sudo dpkg {force}--remove {' '.join(p.name for p in leaving[:NAMED])}"
        found.append(Trouble(reason=f"half-removed: {listed(p.name for p in leaving)}", remedies=(step,)))
    for state in ("half-configured", "unpacked", "triggers-awaited", "triggers-pending"):
        names = [p.name for p in open_ones if p.state == state and p not in broken]
        if names:
            found.append(Trouble(reason=f"{state}: {listed(names)}", remedies=(CONFIGURE,)))
    if open_ones:
        found[-1] = msgspec.structs.replace(found[-1], remedies=(*found[-1].remedies, SETTLE))
    return found


def pinned(package: Package) -> str:
    """As apt takes it; L4T's with their version, so that no other release comes: its archive keeps old ones."""
    return f"{package.name}={package.version}" if package.name.startswith(PREFIX) and package.version else package.name


def half_removed(database: Database) -> list[Trouble]:
    """Packages of this stack that are whole, but marked to go: a removal failed, or was only asked for."""
    names = [p.name for p in marked(database) if p.is_of_stack]
    if not names:
        return []
    keep = "; ".join(f"echo {name} install | sudo dpkg --set-selections" for name in names[:NAMED])
    return [
        Trouble(
            reason=f"marked for removal, and still there: {listed(names)}",
            remedies=(f"to keep: {keep}", f"to remove: sudo apt-get remove {' '.join(names[:NAMED])}"),
            is_fault=False,
        )
    ]


def marked(database: Database) -> list[Package]:
    """Installed packages that are to be removed."""
    return [p for p in database.packages if p.want in ("deinstall", "purge") and p.state == "installed"]


def held(database: Database) -> list[Trouble]:
    """Packages of this stack that apt may not change."""
    names = [p.name for p in stack_first(list(database.packages)) if p.want == "hold" and p.is_of_stack]
    if not names:
        return []
    remedy = f"if the hold is not meant: sudo apt-mark unhold {' '.join(names[:NAMED])}"
    return [Trouble(reason=f"on hold: {listed(names)}", remedies=(remedy,), is_fault=False)]


def package_facts(database: Database) -> dict[str, Fact]:
    """What may be of use, whether it is a fault or not; names are those of this stack, the others are counted."""
    packages = stack_first(list(database.packages))
    on_hold = [p for p in packages if p.want == "hold"]
    open_ones = [p for p in packages if p.is_unfinished]
    return {
        "installed_packages": database.installed,
        "held": [p.name for p in on_hold if p.is_of_stack][:NAMED],
        "held_others": sum(not p.is_of_stack for p in on_hold),
        "unfinished": [f"{p.name}: {p.status}" for p in open_ones][:NAMED],
        "unfinished_packages": len(open_ones),
        "marked_for_removal": [p.name for p in marked(database)][:NAMED],
        "removed_with_configuration": [p.name for p in packages if p.state == "config-files"][:NAMED],
        "unmerged_changes": database.journal,
    }


def evidence(database: Database) -> tuple[Evidence, ...]:
    """The stanzas that count against it, as far as they were kept."""
    rows = [f"{p.name} {p.version} {p.status}" for p in stack_first(list(database.packages)) if p.is_unfinished]
    text = database.damage or "\n".join(rows[:20]) or f"{database.installed} packages installed"
    return (Evidence(executed=f"read {STATUS_FILE}", value=cut(text)),)
