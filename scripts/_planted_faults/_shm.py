"""Faults of synk-shm."""

from __future__ import annotations

from ._fault import faults_of

_fault = faults_of("synk-shm", "synk_shm/")

SHM = (
    _fault(
        "shm-handle-of-transpose",
        "plans",
        "_arrays/handle.py",
        "strides = None if x.flags.c_contiguous else x.strides",
        "strides = None if x.flags.forc else x.strides",
        "The handle of an array in Fortran order, or of a transpose, reads it in C order.",
        "array round_trips bad_segments",
    ),
    _fault(
        "shm-align",
        "plans",
        "_segments/dtypes.py",
        '"aligned": dtype.isalignedstruct,',
        '"aligned": False,',
        "A structured dtype loses its align flag on the way, which NumPy's == does not see.",
        "round_trips array bad_segments",
    ),
    _fault(
        "shm-resize-mode",
        "refusals",
        "_arrays/resize.py",
        "        mode=found.mode,\n",
        "",
        "An array that outgrows its capacity gets the default permissions, not those asked for.",
        "resize",
    ),
    _fault(
        "shm-header-size",
        "refusals",
        "_segments/headers.py",
        "if offset + capacity > size or reserved > capacity:",
        "if capacity > size or reserved > capacity:",
        "A segment that was cut by less than its header's size is mapped, and reading it kills.",
        "peers",
    ),
    _fault(
        "shm-fork-child-owns",
        "life cycles",
        "_arrays/segment.py",
        "# one that is still there\n        self.owned = []\n        self.owner = False",
        "# one that is still there",
        "A forked child counts as the owner of its parent's segments, and removes their names.",
        "lifecycle exit",
    ),
    _fault(
        "shm-unlink-one-name",
        "life cycles",
        "_arrays/removal.py",
        "any([posix.remove(name, inode) for name in names])  # noqa: C419 (all of them)",
        "any(posix.remove(name, inode) for name in names)",
        "unlink() removes one entry of a segment and forgets the others, such as its given name.",
        "array lifecycle",
    ),
    _fault(
        "shm-create-leaves-name",
        "atomicity",
        "_arrays/constructors.py",
        "        for done in owned:\n            posix.remove(done)\n        owned.clear()",
        "        owned.clear()",
        "A segment for which there is not enough memory leaves its name.",
        "full limits",
    ),
    _fault(
        "shm-populate-keeps",
        "error paths",
        "_segments/memory.py",
        "        _advise(advise, base + whole, stop - whole, _REMOVE)\n        raise failures[0]",
        "        raise failures[0]",
        "A large array that does not fit keeps the pages it got, while a traceback holds it.",
        "full limits",
    ),
    _fault(
        "shm-sweep-of-the-living",
        "life cycles",
        "_processes/families.py",
        "_lock(fd, fcntl.LOCK_EX) and _is_current(fd, family)\n        if",
        "_is_current(fd, family)\n        if",
        "A sweep takes living families for dead ones, and removes the names of their segments.",
        "lifecycle exit lives",
    ),
    _fault(
        "shm-received-name-stays",
        "life cycles",
        "_arrays/pickling.py",
        "    mapping.segment.adopt(entry)\n",
        "",
        "The name that came with a message stays when its receiver has dropped the array.",
        "multiprocessing",
    ),
)
