#!/usr/bin/env python3
"""Shows that Linux loses bytes of a write(2) to a FUSE file opened with FOPEN_DIRECT_IO when another thread stores into the
same page by a shared mapping meanwhile: `sudo python3 lost-write.py DIRECTORY`, an empty directory to mount on.

The server below has one thread, one file, and answers requests in the kernel's order. The kernel drops the cached pages of the range
before the first WRITE of a write(2), not after the last one: a fault in between reads the old page, the store makes it
dirty, and its write-back puts the old bytes over those that were written since.
"""

import ctypes, errno, os, struct, subprocess, sys, threading, time

PAGE, PAGES = 4096, 64
FORGET, LOOKUP, GETATTR, OPEN, READ, WRITE, INIT, BATCH_FORGET = 2, 1, 3, 14, 15, 16, 26, 42
WITHOUT_BODY = {9: "GETXATTR", 18: "RELEASE", 20: "FSYNC", 25: "FLUSH"}
INIT_EXT, ASYNC_READ, DIRECT_IO_ALLOW_MMAP_HIGH, FOPEN_DIRECT_IO, FROM_PAGE_CACHE = 1 << 30, 1, 1 << 4, 1, 1

CLIENT = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
enum { PAGE = 4096, WRITTEN = 2 * PAGE - 1024 };
static char *map;
/* In the last quarter of the second page, which the write does not reach, while the first page's WRITE is answered. */
static void *store(void *unused) { usleep(100000); map[WRITTEN + 512] = 'S'; return unused; }
int main(int argc, char **argv) {
    int file = open(argv[argc - 1], O_RDWR);
    map = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || map == MAP_FAILED) { perror(argv[argc - 1]); return 2; }
    pthread_t thread;
    char bytes[WRITTEN], back[WRITTEN];
    memset(bytes, 'W', sizeof bytes);
    pthread_create(&thread, 0, store, 0);
    long count = pwrite(file, bytes, WRITTEN, 0), lost = 0;
    pthread_join(thread, 0);
    msync(map, 2 * PAGE, MS_SYNC);
    pread(file, back, WRITTEN, 0);
    for (long at = 0; at < count; at++) lost += back[at] != 'W';
    printf("pwrite returned %ld; %ld of its bytes are lost\n", count, lost);
    return lost != 0;
}
"""


def attributes(inode):
    size, mode = (0, 0o40755) if inode == 1 else (PAGE * PAGES, 0o100644)
    return struct.pack("<6Q10I", inode, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, PAGE, 0)


def answer(content, opcode, inode, body):
    """The reply to one request, or its errno."""
    if opcode == INIT:
        # Version 7.40, max_write of one page: a write of two pages is two requests.
        return struct.pack("<4I2H2I2H2I24x", 7, 40, 1 << 17, INIT_EXT | ASYNC_READ, 16, 12, PAGE, 1, 1, 0, DIRECT_IO_ALLOW_MMAP_HIGH, 0)
    if opcode == LOOKUP:
        return struct.pack("<4Q2I", 2, 0, 3600, 3600, 0, 0) + attributes(2) if body == b"file\0" else errno.ENOENT
    if opcode == GETATTR:
        return struct.pack("<Q2I", 3600, 0, 0) + attributes(inode)
    if opcode == OPEN:
        return struct.pack("<Q2I", 1, FOPEN_DIRECT_IO, 0)
    if opcode in (READ, WRITE):
        offset, size, flags = struct.unpack_from("<QII", body, 8)
        by = "page cache" if opcode == WRITE and flags & FROM_PAGE_CACHE else "call"
        print(f"{'READ ' if opcode == READ else 'WRITE'} {size:6} bytes at {offset:5}, from the {by}")
        if opcode == READ:
            return bytes(content[offset : offset + size])
        content[offset : offset + size] = body[40 : 40 + size]
        if by == "call" and offset == 0:
            time.sleep(0.3)  # It is done; only its answer takes a while.
        return struct.pack("<2I", size, 0)
    return b"" if opcode in WITHOUT_BODY else errno.ENOSYS


def serve(device):
    content = bytearray(PAGE * PAGES)
    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            continue
        length, opcode, unique, inode = struct.unpack_from("<2I2Q", request)
        if opcode in (FORGET, BATCH_FORGET):
            continue
        said = answer(content, opcode, inode, request[40:length])
        error, body = (-said, b"") if isinstance(said, int) else (0, said)
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def main(target):
    libc = ctypes.CDLL(None, use_errno=True)
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"lost-write", target.encode(), b"fuse.lost-write", 0, options):
        sys.exit(f"{target}: mount: {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=serve, args=(device,), daemon=True).start()
    try:
        client = f"/tmp/lost-write-{os.getpid()}"
        subprocess.run(["cc", "-xc", "-", "-pthread", "-o", client], input=CLIENT, text=True, check=True)
        status = subprocess.run([client, f"{target}/file"], timeout=30).returncode
        os.unlink(client)
    finally:
        libc.umount2(target.encode(), 2)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]) if len(sys.argv) == 2 else __doc__)
