"""Says what a program of a release needs of the machine that runs it, and refuses one that breaks a promise of the release.

    program.py OS_ARCH PROGRAM

The head of the file is read, so this works where the program cannot run. No reader is needed for Windows: Wine runs that program.
"""

import struct
import sys
from pathlib import Path

import elf
import macho

READERS = {"linux": elf.needs, "darwin": macho.needs}


def main(os_arch, program):
    """Prints the needs of one program."""
    try:
        print(READERS[os_arch.split("_")[0]](os_arch, Path(program).read_bytes()))
    except ValueError as error:
        sys.exit(f"{os_arch}: {error}")
    except struct.error:
        sys.exit(f"{os_arch}: it ends within its head")


if __name__ == "__main__":
    main(*sys.argv[1:])
