"""What a program for Linux needs: nothing but the kernel, because a release promises static programs.

The images of both hosts are Alpine, which has no glibc. A dynamic program would run on the machine that made the release, and not
in these images. A static program may have a dynamic section (PT_DYNAMIC), from which it relocates itself; what makes a program
dynamic is a loader (PT_INTERP) or a library (DT_NEEDED). Layout: <elf.h>.
"""

import struct

# 64 bits, little-endian.
MAGIC = b"\x7fELF\x02\x01"
PROCESSORS = {62: "linux_amd64", 183: "linux_arm64"}
# A program at a fixed address, and one at any address.
EXECUTABLE, DYNAMIC_OBJECT = 2, 3
LOAD, DYNAMIC, LOADER = 1, 2, 3
END, NEEDED, NAMES = 0, 1, 5


def needs(os_arch, content):
    """Says what the program needs; raises ValueError for a wrong, a dynamic and a truncated one."""
    platform, loader, libraries = facts(content)
    if platform != os_arch:
        raise ValueError(f"it is for {platform or 'another processor'}")
    if loader is not None:
        raise ValueError(f"it is not static: it needs the loader {loader}")
    if libraries:
        raise ValueError(f"it is not static: it needs {', '.join(libraries)}")
    return "static: it needs no loader and no library"


def facts(content):
    """Platform, loader, and libraries."""
    if content[:6] != MAGIC:
        raise ValueError("it is not a program for Linux")
    form, processor = struct.unpack_from("<2H", content, 16)
    segments_at, sections_at = struct.unpack_from("<2Q", content, 32)
    segment_size, segment_count, section_size, section_count = struct.unpack_from("<4H", content, 54)
    if form not in (EXECUTABLE, DYNAMIC_OBJECT):
        raise ValueError("it is not a program for Linux")
    segments = [struct.unpack_from("<2I6Q", content, segments_at + segment_size * n) for n in range(segment_count)]
    loads, loader, entries = [], None, []
    for kind, _, offset, address, _, size, _, _ in segments:
        if offset + size > len(content):
            raise ValueError("it is truncated: it ends within a segment")
        if kind == LOAD:
            loads.append((address, offset, size))
        elif kind == LOADER:
            loader = text(content, offset)
        elif kind == DYNAMIC:
            entries = struct.iter_unpack("<2Q", content[offset : offset + size - size % 16])
    # The table of sections stands last: without it the file was cut, although it may still run.
    if sections_at + section_size * section_count > len(content):
        raise ValueError("it is truncated: it ends within its sections")
    if not loads:
        raise ValueError("it has no segment to load")
    return PROCESSORS.get(processor), loader, needed(content, loads, entries)


def needed(content, loads, entries):
    """Names of the libraries in the entries of the dynamic section."""
    names_at, offsets = 0, []
    for tag, value in entries:
        if tag == END:
            break
        if tag == NAMES:
            names_at = value
        elif tag == NEEDED:
            offsets.append(value)
    return [text(content, place(loads, names_at + offset)) for offset in offsets]


def place(loads, wanted):
    """Where in the file an address of the running program is."""
    for address, offset, size in loads:
        if address <= wanted < address + size:
            return wanted - address + offset
    raise ValueError("it is not static: it needs a library whose name is not in it")


def text(content, at):
    """The text that ends with a zero."""
    return content[at : at + 4096].split(b"\0")[0].decode(errors="replace")
