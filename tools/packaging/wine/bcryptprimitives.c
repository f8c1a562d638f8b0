/* Random bytes for a Windows program under a Wine that lacks bcryptprimitives.dll (Debian 12 has Wine 8): Rust's standard
 * library calls this one function of it. Part of no release: tools/packaging/try lays it beside a program that it runs. */
__declspec(dllimport) unsigned char __stdcall SystemFunction036(void *, unsigned long);

__declspec(dllexport) int __stdcall ProcessPrng(void *bytes, unsigned long long count) {
    return SystemFunction036(bytes, (unsigned long)count);
}

int __stdcall DllMainCRTStartup(void *module, unsigned long reason, void *reserved) {
    (void)module, (void)reason, (void)reserved;
    return 1;
}
