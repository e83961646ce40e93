"""A user of the device as its files know it, and what file modes allow that user: for `--as-user`.

A service runs as another user than the person who asks; what that user may read is worked out from /etc/passwd and
/etc/group, owner, group and mode. Access control lists (logind gives them to whoever sits at the screen) are not looked
at: a service has none.

Source: passwd(5), group(5), path_resolution(7).
"""

from __future__ import annotations

import os
import stat

import msgspec


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """One user.

    Attributes:
        groups: number -> name of every group the user is in; a number without a name has "".
    """

    name: str
    uid: int
    groups: dict[int, str] = {}


def find(passwd: str, group: str, named: str) -> Account | None:
    """The user of this name or number.

    Args:
        passwd: text of /etc/passwd.
        group: text of /etc/group.
        named: "edge-agent" or "998".

    Returns: None when there is no such user.
    """
    for row in rows(passwd, 4):
        uid, gid = number(row[2]), number(row[3])
        if uid is not None and gid is not None and named in (row[0], str(uid)):
            groups = {gid: group_name(group, gid)}
            for other in rows(group, 4):
                other_gid = number(other[2])
                if other_gid is not None and row[0] in other[3].split(","):
                    groups[other_gid] = other[0]
            return Account(name=row[0], uid=uid, groups=groups)
    return None


def group_name(group: str, gid: int) -> str:
    """The name of a group's number; "" when it has none."""
    return next((row[0] for row in rows(group, 3) if number(row[2]) == gid), "")


def user_name(passwd: str, uid: int) -> str:
    """The name of a user's number; "" when it has none."""
    return next((row[0] for row in rows(passwd, 3) if number(row[2]) == uid), "")


def rows(text: str, fields: int) -> list[list[str]]:
    """The lines of such a file that have at least so many fields."""
    split = (line.strip().split(":") for line in text.replace("\0", "").splitlines())
    return [row for row in split if len(row) >= fields and row[0]]


def number(text: str) -> int | None:
    """An id; None for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def may_read(account: Account, path: str) -> bool:
    """Whether modes let the user read a file, its folders included.

    Raises:
        OSError: it is not there, or this process itself can't look at it.
    """
    real = os.path.realpath(path)
    if account.uid == 0:
        return bool(os.stat(real))
    folder = os.path.dirname(real)
    while True:
        if not allowed(account, os.stat(folder), stat.S_IXOTH):
            return False
        if folder in ("/", ""):
            break
        folder = os.path.dirname(folder)
    return allowed(account, os.stat(real), stat.S_IROTH)


def allowed(account: Account, status: os.stat_result, bit: int) -> bool:
    """One permission: the first class that the user belongs to decides, as in the kernel.

    Args:
        account: the user.
        status: of the file.
        bit: S_IROTH, S_IWOTH or S_IXOTH.
    """
    shift = 6 if status.st_uid == account.uid else 3 if status.st_gid in account.groups else 0
    return bool(status.st_mode & bit << shift)
