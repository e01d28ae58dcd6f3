"""Access control lists of folders, to let one account traverse them where the permission bits do not.

The execute bit for others would let every user traverse them and read what is readable below, such as root's
home.
"""

import errno
import os
import struct
import sys
from pathlib import Path

# As in linux/posix_acl_xattr.h.
_ATTRIBUTE = "system.posix_acl_access"
_HEADER = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_PASS = 1

# Permissions by tag and id; the id matters only for _USER and _GROUP.
_Entries = dict[tuple[int, int], int]


def may_pass(folder: Path, uid: int, gid: int) -> bool:
    """Whether an account with only this group may traverse `folder`."""
    status, entries = folder.stat(), _read(folder)
    mask = entries.get((_MASK, _NO_ID), 7)
    if status.st_uid == uid:
        return bool(entries[_OWNER, _NO_ID] & _PASS)
    if (_USER, uid) in entries:
        return bool(entries[_USER, uid] & mask & _PASS)
    groups = [entries[_GROUP, gid]] if (_GROUP, gid) in entries else []
    if status.st_gid == gid:
        groups.append(entries[_OWNING_GROUP, _NO_ID])
    if groups:
        return any(permissions & mask & _PASS for permissions in groups)
    return bool(entries[_OTHER, _NO_ID] & _PASS)


def let_pass(folder: Path, uid: int) -> None:
    """Let one account traverse `folder` without listing it. Raises OSError if that is not possible."""
    entries = _read(folder)
    entries[_USER, uid] = entries.get((_USER, uid), 0) | _PASS
    # Without a mask, the group's bits apply; with one, they contain the mask.
    entries[_MASK, _NO_ID] = entries.get((_MASK, _NO_ID), entries[_OWNING_GROUP, _NO_ID]) | _PASS
    packed = (_ENTRY.pack(tag, entries[tag, id_], id_) for tag, id_ in sorted(entries))
    if sys.platform != "linux":
        raise OSError(errno.ENOTSUP, "no access control lists", str(folder))
    os.setxattr(folder, _ATTRIBUTE, _HEADER + b"".join(packed))


def _read(folder: Path) -> _Entries:
    mode = folder.stat().st_mode
    bits = {_OWNER: mode >> 6 & 7, _OWNING_GROUP: mode >> 3 & 7, _OTHER: mode & 7}
    plain = {(tag, _NO_ID): permissions for tag, permissions in bits.items()}
    if sys.platform != "linux":
        return plain
    try:
        packed = os.getxattr(folder, _ATTRIBUTE)
    except OSError:
        return plain
    return {(tag, id_): permissions for tag, permissions, id_ in _ENTRY.iter_unpack(packed[len(_HEADER) :])}
