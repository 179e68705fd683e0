# Every command, as libnbd sees it. Runs in nbdsh; NBD_URI says where the server is. The export has 1 MiB, all holes.
import errno
import os

uri = os.environ["NBD_URI"]
MIB = 1 << 20


def connect():
    handle = nbd.NBD()
    handle.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    handle.set_strict_mode(0)
    # Certificates, where the URI names some.
    handle.set_uri_allow_local_file(True)
    handle.connect_uri(uri)
    return handle


def refused(number, call):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum == number, error
    else:
        raise AssertionError("it was not refused")


def status(handle, offset, length, flags=0):
    extents = []

    def collect(context, at, entries, error):
        assert (context, at) == ("base:allocation", offset)
        extents.extend(zip(entries[::2], entries[1::2]))

    handle.block_status(length, offset, collect, flags)
    return extents


def chunks(handle, offset, length, flags=0):
    found = []

    def collect(part, at, kind, error):
        found.append((at, len(part), kind))

    data = handle.pread_structured(length, offset, collect, flags)
    return data, found


one, other = connect(), connect()
assert one.get_size() == MIB and one.can_multi_conn() and one.get_structured_replies_negotiated()

# Nothing is there: a hole.
data, found = chunks(one, 0, 65536)
assert data == bytearray(65536) and found == [(0, 65536, nbd.READ_HOLE)], found
assert status(one, 0, MIB) == [(MIB, 3)]

# Parts of blocks keep their neighbours; two connections see the same.
one.pwrite(b"a" * 5000, 4000)
other.pwrite(b"b" * 100, 4096)
one.pwrite(b"c", 8191)
expected = b"\0" * 4000 + b"a" * 96 + b"b" * 100 + b"a" * 3995 + b"c" + b"a" * 808 + b"\0" * 10
assert one.pread(len(expected), 0) == expected and other.pread(len(expected), 0) == expected
assert status(one, 0, 5 * 4096) == [(3 * 4096, 0), (2 * 4096, 3)]
assert status(one, 4095, 3 * 4096) == [(2 * 4096 + 1, 0), (4095, 3)]
assert status(one, 0, MIB, nbd.CMD_FLAG_REQ_ONE) == [(3 * 4096, 0)]

# Data and holes in one read; whole where it is to be.
one.pwrite(b"d" * 4096, 32 * 4096)
data, found = chunks(one, 31 * 4096 + 7, 130 * 1024)
assert bytes(data) == b"\0" * 4089 + b"d" * 4096 + b"\0" * (130 * 1024 - 8185)
assert {kind for _, _, kind in found} == {nbd.READ_DATA, nbd.READ_HOLE}, found
data, found = chunks(one, 31 * 4096 + 7, 130 * 1024, nbd.CMD_FLAG_DF)
assert len(found) == 1 and found[0][2] == nbd.READ_DATA, found

# Trims: whole blocks become holes, parts of them stay.
one.pwrite(b"e" * 16384, 65536)
one.trim(10000, 65536 + 100)
assert one.pread(4096, 65536) == b"e" * 4096
assert status(one, 65536, 16384) == [(4096, 0), (4096, 3), (8192, 0)]

# Zeroes: with a hole or without, in parts of blocks.
one.pwrite(b"f" * 16384, 65536)
one.zero(9000, 65536 + 100, nbd.CMD_FLAG_FUA)
assert one.pread(16384, 65536) == b"f" * 100 + b"\0" * 9000 + b"f" * (16384 - 9100)
assert status(one, 65536, 16384) == [(4096, 0), (4096, 3), (8192, 0)]
one.zero(8192, 65536, nbd.CMD_FLAG_NO_HOLE)
assert status(one, 65536, 8192) == [(8192, 0)] and one.pread(8192, 65536) == bytearray(8192)
one.zero(4096, 65536, nbd.CMD_FLAG_FAST_ZERO)
refused(errno.ENOTSUP, lambda: one.zero(4096, 65536, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE))

# A flush on one connection covers what another one wrote.
other.pwrite(b"g", 12345)
one.flush()
one.cache(MIB, 0)

# What is wrong is refused, and the connection lives.
refused(errno.EINVAL, lambda: one.pread(2, MIB - 1))
refused(errno.ENOSPC, lambda: one.pwrite(b"xx", MIB - 1))
refused(errno.ENOSPC, lambda: one.zero(2, MIB - 1))
refused(errno.EINVAL, lambda: one.trim(2, MIB - 1))
refused(errno.EINVAL, lambda: one.cache(2, MIB - 1))
refused(errno.EINVAL, lambda: one.pread(33 << 20, 0))
refused(errno.EINVAL, lambda: one.pwrite(bytearray(33 << 20), 0))
assert one.pread(1, 12345) == b"g"

# Many at a time.
buffers = [nbd.Buffer.from_bytearray(bytearray([n]) * 3000) for n in range(64)]
cookies = [one.aio_pwrite(buffer, 3000 * n + 300000) for n, buffer in enumerate(buffers)]
while one.aio_in_flight() > 0:
    one.poll(-1)
assert all(one.aio_command_completed(cookie) for cookie in cookies)
assert other.pread(3000 * 64, 300000) == b"".join(bytes([n]) * 3000 for n in range(64))
one.shutdown()
other.shutdown()
print("done")
