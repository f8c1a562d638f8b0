"""What a program for macOS needs of the Mac that runs it.

A Mac is not at hand where releases are made, so what its loader would look at first is read here: the processor, the oldest
system, the libraries, and the signature (arm64 starts no program without one; that of the linker, which names nobody, will do).
Layout: Apple's <mach-o/loader.h>.
"""

import struct

MAGIC_64 = 0xFEEDFACF
PROCESSORS = {0x01000007: "darwin_amd64", 0x0100000C: "darwin_arm64"}
LOAD_DYLIB, CODE_SIGNATURE, OLDEST_VERSION, BUILD_VERSION = 0x0C, 0x1D, 0x24, 0x32
# The oldest macOS that a release promises; tools/packaging/build asks the linker for it.
PROMISED = (11, 0)
# On every Mac, and in no package.
OF_THE_SYSTEM = ("/usr/lib/", "/System/Library/")


def needs(os_arch, content):
    """Says what the program needs; raises ValueError for one that a Mac of the release would not start."""
    platform, oldest, libraries, signed = facts(content)
    if platform != os_arch:
        raise ValueError(f"it is for {platform or 'another processor'}")
    if oldest is None:
        raise ValueError("it does not say which macOS it needs")
    if oldest > PROMISED:
        raise ValueError(f"it needs macOS {dotted(oldest)}, and a release promises macOS {dotted(PROMISED)}")
    foreign = [library for library in libraries if not library.startswith(OF_THE_SYSTEM)]
    if foreign:
        raise ValueError(f"it needs {', '.join(foreign)}, which a Mac does not have")
    if not signed and os_arch == "darwin_arm64":
        raise ValueError("it is not signed, and a Mac would end it at its start")
    names = ", ".join(library.rsplit("/", 1)[1] for library in libraries)
    return f"for macOS {dotted(oldest)} and later, {'signed by the linker' if signed else 'not signed'}, needs {names}"


def dotted(version):
    """A version as people write it."""
    return ".".join(str(part) for part in version)


def facts(content):
    """Platform, oldest macOS, libraries, and whether it is signed."""
    if len(content) < 32 or content[:4] != MAGIC_64.to_bytes(4, "little"):
        raise ValueError("it is not a program for macOS")
    _, processor, _, _, count, _, _, _ = struct.unpack_from("<8I", content)
    oldest, libraries, signed, at = None, [], False, 32
    for _ in range(count):
        kind, size = struct.unpack_from("<2I", content, at)
        command = content[at : at + size]
        at += size
        if kind == LOAD_DYLIB:
            [start] = struct.unpack_from("<I", command, 8)
            libraries.append(command[start:].split(b"\0")[0].decode())
        elif kind in (OLDEST_VERSION, BUILD_VERSION):
            [version] = struct.unpack_from("<I", command, 8 if kind == OLDEST_VERSION else 12)
            oldest = (version >> 16, version >> 8 & 255)
        elif kind == CODE_SIGNATURE:
            signed = True
    return PROCESSORS.get(processor), oldest, libraries, signed
