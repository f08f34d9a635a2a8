#!/usr/bin/env python3
"""Writes tlp.txt: golden transaction layer packets, made with a codec that is independent of this crate.

The bytes come from cocotbext-pcie (class cocotbext.pcie.core.tlp.Tlp), release 0.2.16. To run it again:

    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install cocotbext-pcie==0.2.16
    /tmp/venv/bin/python crates/pcie/tests/golden/make_vectors.py > crates/pcie/tests/golden/tlp.txt

The output is the same each time; a change of it is a change to review.

That codec packs memory requests, configuration requests and completions whole, with 10-bit tags. It does not pack
messages. A message header differs from that of a 64-bit memory read in the first byte, in byte 7 (message code
instead of byte enables) and in the meaning of bytes 8 to 15; so a message here is packed by the codec as such a
read whose byte enables spell the code and whose address spells dwords 2 and 3, and gets its first byte from the
codec's own table of types. Reserved completion statuses have no name in the codec, but its encoder takes them.
"""

from cocotbext.pcie.core.tlp import CplStatus, Tlp, TlpAt, TlpAttr, TlpFmt, TlpTc, TlpType
from cocotbext.pcie.core.utils import PcieId

HEADER = """\
# Golden transaction layer packets. Made by make_vectors.py with cocotbext-pcie 0.2.16; do not edit by hand.
#
# A vector is a line `name`, lines `key value`, and the packet: `hex` lines with up to 32 bytes each, in the order of
# the wire, header and payload apart. Vectors are divided by an empty line. Numbers with 0x are hexadecimal.
#   kind        memory-read, memory-write, config-read, config-write, completion, message
#   payload     `N seed S`: N bytes, of which byte i is (S + 7 * i) mod 256; absent without payload. Its hex is not
#               listed if N is above 256.
#   range       of memory requests: first byte and number of bytes, from which the request was made
#   attributes  bits IDO RO NS; at: the address type field
# Not covered by that codec: messages, whose bytes are derived from its memory read (see make_vectors.py).
"""


def payload(count, seed):
    return bytes((seed + 7 * index) % 256 for index in range(count))


def emit(name, kind, fields, tlp, seed, header=None):
    assert tlp.check(), name
    lines = [f"name {name}", f"kind {kind}"]
    lines += [f"{key} {value}" for key, value in fields.items()]
    lines += [
        f"requester {tlp.requester_id.bus:02x}:{tlp.requester_id.device:02x}.{tlp.requester_id.function}",
        f"tag {tlp.tag}",
        f"traffic-class {int(tlp.tc)}",
        f"attributes {int(tlp.attr)}",
        f"poisoned {int(tlp.ep)}",
    ]
    header = bytes(tlp.pack_header()) if header is None else header
    body = bytes(tlp.pack())[len(header):]
    if body:
        lines.append(f"payload {len(body)} seed {seed}")
    lines.append("hex " + header.hex())
    if len(body) <= 256:
        lines += ["hex " + body[at:at + 32].hex() for at in range(0, len(body), 32)]
    print("\n" + "\n".join(lines))


def common(tlp, requester, tag, tc=0, attr=0, ep=False):
    tlp.requester_id = PcieId(*requester)
    tlp.tag = tag
    tlp.tc = TlpTc(tc)
    tlp.attr = TlpAttr(attr)
    tlp.ep = ep


def memory(name, write, address, count, requester=(1, 0, 0), tag=0, at=0, enables=None, seed=0, **rest):
    tlp = Tlp()
    long = address >= 1 << 32
    tlp.fmt_type = {
        (False, False): TlpType.MEM_READ,
        (False, True): TlpType.MEM_READ_64,
        (True, False): TlpType.MEM_WRITE,
        (True, True): TlpType.MEM_WRITE_64,
    }[write, long]
    common(tlp, requester, tag, **rest)
    tlp.at = TlpAt(at)
    tlp.set_addr_be(address, count)
    if enables is not None:
        tlp.first_be, tlp.last_be = enables
    if write:
        tlp.set_data(payload(tlp.length * 4, seed))
    fields = {
        "address": f"{tlp.address:#x}",
        "length-dw": tlp.length,
        "first-be": f"{tlp.first_be:#x}",
        "last-be": f"{tlp.last_be:#x}",
        "at": at,
    }
    if enables is None:
        fields["range"] = f"{address:#x} {count}"
    emit(name, "memory-write" if write else "memory-read", fields, tlp, seed)


def config(name, write, kind, target, register, enables, requester=(0, 0, 0), tag=0, ep=False, seed=0):
    tlp = Tlp()
    tlp.fmt_type = {
        (False, 0): TlpType.CFG_READ_0,
        (False, 1): TlpType.CFG_READ_1,
        (True, 0): TlpType.CFG_WRITE_0,
        (True, 1): TlpType.CFG_WRITE_1,
    }[write, kind]
    common(tlp, requester, tag, ep=ep)
    tlp.dest_id = PcieId(*target)
    tlp.address = register
    tlp.length = 1
    tlp.first_be = enables
    if write:
        tlp.set_data(payload(4, seed))
    fields = {
        "type": kind,
        "target": f"{target[0]:02x}:{target[1]:02x}.{target[2]}",
        "register": f"{register:#x}",
        "first-be": f"{enables:#x}",
    }
    emit(name, "config-write" if write else "config-read", fields, tlp, seed)


def completion(name, status, byte_count, lower_address, length, requester=(1, 0, 0), completer=(2, 0, 0), tag=0,
               seed=0, **rest):
    tlp = Tlp()
    tlp.fmt_type = TlpType.CPL_DATA if length else TlpType.CPL
    common(tlp, requester, tag, **rest)
    tlp.completer_id = PcieId(*completer)
    tlp.status = status
    tlp.byte_count = byte_count
    tlp.lower_address = lower_address
    if length:
        tlp.set_data(payload(length * 4, seed))
    fields = {
        "completer": f"{completer[0]:02x}:{completer[1]:02x}.{completer[2]}",
        "status": int(status),
        "byte-count": byte_count,
        "lower-address": f"{lower_address:#x}",
        "length-dw": length,
    }
    emit(name, "completion", fields, tlp, seed)


def message(name, code, tlp_type, dw2=0, dw3=0, length=0, requester=(1, 0, 0), tag=0, seed=0, **rest):
    twin = Tlp()
    twin.fmt_type = TlpType.MEM_WRITE_64 if length else TlpType.MEM_READ_64
    common(twin, requester, tag, **rest)
    twin.first_be, twin.last_be = code & 0xF, code >> 4
    twin.address = dw2 << 32 | dw3
    twin.ph = dw3 & 0x3
    if length:
        twin.set_data(payload(length * 4, seed))
    fmt, kind = tlp_type.value
    assert (fmt == TlpFmt.FOUR_DW_DATA) == bool(length)
    header = bytes([fmt << 5 | kind]) + bytes(twin.pack_header())[1:]
    fields = {
        "code": f"{code:#x}",
        "routing": kind & 7,
        "length-dw": length,
        "dw2": f"{dw2:#x}",
        "dw3": f"{dw3:#x}",
    }
    # The check of the twin is about addresses.
    twin.check = lambda: True
    emit(name, "message", fields, twin, seed, header)


def memory_vectors():
    memory("read 4 bytes", False, 0x1000, 4)
    memory("read 4 bytes at the top of the 32-bit format", False, 0xFFFF_FFFC, 4, tag=1)
    memory("read 4 bytes at the bottom of the 64-bit format", False, 0x1_0000_0000, 4, tag=2)
    memory("read at the end of the address space", False, 0xFFFF_FFFF_FFFF_FFFC, 4, requester=(255, 31, 7), tag=255)
    memory("read 4096 bytes: length 1024 is written as 0", False, 0x1234_5000, 4096, tag=3)
    memory("read 4096 bytes, 64-bit", False, 0x8000_0000_1000, 4096, tag=4)
    memory("read 4092 bytes: length 1023", False, 0x1234_5004, 4092, tag=5)
    for tag in (255, 256, 511, 512, 767, 768, 1023):
        memory(f"read with tag {tag}", False, 0xC000_0040, 64, requester=(3, 4, 5), tag=tag)
    for lead in range(4):
        for count in (1, 2, 3, 4, 5, 9):
            memory(f"read {count} bytes at offset {lead}", False, 0x2000_0100 + lead, count, tag=6)
    memory("read with gaps in one dword", False, 0x3000, 4, enables=(0b0101, 0), tag=7)
    memory("read with gaps in an aligned quadword", False, 0x3008, 8, enables=(0b1001, 0b0110), tag=8)
    memory("zero-length read", False, 0x3010, 4, enables=(0, 0), tag=9)
    for attr in range(8):
        memory(f"read with attributes {attr}", False, 0x4000, 128, attr=attr, tag=10)
    for tc in (1, 5, 7):
        memory(f"read in traffic class {tc}", False, 0x2_0000_0000, 128, tc=tc, tag=11)
    memory("read with a translated address", False, 0x5_0000_0000, 256, at=2, tag=12)
    memory("translation request", False, 0x5_0000_1000, 8, at=1, tag=13)

    memory("write 4 bytes", True, 0x1000, 4, seed=1)
    memory("write an MSI-X message", True, 0xFEE0_1004, 4, requester=(2, 0, 1), seed=2)
    memory("write 1 byte", True, 0xFEE0_1007, 1, seed=3)
    memory("write 6 bytes across dwords", True, 0x7_0000_0003, 6, requester=(2, 3, 1), tag=300, seed=4)
    memory("write 256 bytes, 64-bit", True, 0x4000_0000_0000, 256, tag=0x2AA, attr=2, seed=5)
    memory("write 4096 bytes", True, 0x0001_0000, 4096, tag=1023, seed=6)
    memory("write 4096 bytes, 64-bit, everything set", True, 0xFFFF_FFFF_FFFF_F000, 4096, requester=(255, 31, 7),
           tag=1023, tc=7, attr=7, at=2, ep=True, seed=7)
    memory("poisoned write", True, 0x2000, 32, ep=True, seed=8)
    memory("write with gaps in one dword", True, 0x3000, 4, enables=(0b1010, 0), seed=9)
    memory("zero-length write", True, 0x3000, 4, enables=(0, 0), seed=10)


def config_vectors():
    config("read the vendor id", False, 0, (1, 0, 0), 0x000, 0xF)
    config("read one byte of a far function", False, 1, (0x42, 0x1F, 7), 0x034, 0x1, requester=(0, 2, 0), tag=17)
    config("read an extended capability", False, 0, (1, 0, 0), 0x100, 0xF, tag=0x100)
    config("read the last register", False, 1, (255, 31, 7), 0xFFC, 0xF, requester=(255, 31, 7), tag=1023)
    config("read nothing", False, 0, (1, 0, 0), 0x004, 0x0, tag=18)
    config("write the command register", True, 0, (1, 0, 0), 0x004, 0x3, tag=19, seed=11)
    config("write a base address register", True, 0, (1, 0, 0), 0x010, 0xF, tag=0x200, seed=12)
    config("write the upper half of a far register", True, 1, (7, 1, 2), 0x0B0, 0xC, requester=(0, 1, 0), tag=20,
           seed=13)
    config("poisoned configuration write", True, 0, (1, 0, 0), 0x03C, 0x1, ep=True, seed=14)


def completion_vectors():
    completion("complete a configuration write", CplStatus.SC, 4, 0, 0, tag=19)
    completion("complete a configuration read", CplStatus.SC, 4, 0, 1, tag=17, seed=15)
    completion("unsupported request", CplStatus.UR, 4, 0, 0, tag=21)
    completion("request retry status", CplStatus.CRS, 4, 0, 0, tag=22)
    completion("completer abort of a read", CplStatus.CA, 512, 0x40, 0, tag=23)
    for status in (3, 5, 6, 7):
        completion(f"reserved status {status}", status, 4, 0, 0, tag=24)
    completion("data, whole, 4096 bytes: byte count is written as 0", CplStatus.SC, 4096, 0, 1024, tag=25, seed=16)
    completion("data, first of 4096 bytes", CplStatus.SC, 4096, 0, 64, tag=26, seed=17)
    completion("data, last of 4096 bytes", CplStatus.SC, 256, 0, 64, tag=26, seed=18)
    completion("data, one byte at offset 3", CplStatus.SC, 1, 0x7F, 1, tag=27, seed=19)
    completion("data, unaligned start", CplStatus.SC, 300, 0x21, 24, tag=28, seed=20)
    completion("data with tag 512", CplStatus.SC, 64, 0x40, 16, requester=(3, 4, 5), completer=(9, 1, 0), tag=512,
               seed=21)
    completion("data with tag 256", CplStatus.SC, 64, 0x40, 16, tag=256, seed=22)
    completion("data, everything set", CplStatus.SC, 4095, 0x7F, 1024, requester=(255, 31, 7), completer=(255, 31, 7),
               tag=1023, tc=7, attr=7, ep=True, seed=23)
    completion("poisoned data", CplStatus.SC, 32, 0, 8, tag=29, ep=True, seed=24)
    completion("completion of a zero-length read", CplStatus.SC, 1, 0x10, 1, tag=9, seed=25)


def message_vectors():
    for index, letter in enumerate("ABCD"):
        message(f"Assert_INT{letter}", 0x20 + index, TlpType.MSG_LOCAL)
        message(f"Deassert_INT{letter}", 0x24 + index, TlpType.MSG_LOCAL)
    message("PME_Turn_Off", 0x19, TlpType.MSG_BCAST, requester=(0, 0, 0))
    # 0001 1011b in the specification; the codec's list of codes, which is not used here, says 0x1a.
    message("PME_TO_Ack", 0x1B, TlpType.MSG_GATHER)
    message("PM_PME", 0x18, TlpType.MSG_TO_RC, requester=(4, 0, 0))
    message("ERR_COR", 0x30, TlpType.MSG_TO_RC)
    message("ERR_NONFATAL", 0x31, TlpType.MSG_TO_RC)
    message("ERR_FATAL", 0x33, TlpType.MSG_TO_RC, requester=(255, 31, 7))
    message("Set_Slot_Power_Limit", 0x50, TlpType.MSG_DATA_LOCAL, length=1, seed=26)
    message("Vendor_Defined Type 1 by id", 0x7F, TlpType.MSG_ID, dw2=0x0300_1AF4, dw3=0xDEAD_BEEF, tag=300, tc=3)
    message("Vendor_Defined Type 0 with data", 0x7E, TlpType.MSG_DATA_ID, dw2=0xFFFF_FFFF, dw3=0x0123_4567, length=16,
            tag=1023, attr=7, seed=27)
    message("Vendor_Defined Type 1 by address, poisoned", 0x7F, TlpType.MSG_DATA_ADDR, dw2=0x1, dw3=0x8000_0001,
            length=1024, ep=True, tc=7, seed=28)
    message("unknown code", 0xA5, TlpType.MSG_BCAST, tag=1)


if __name__ == "__main__":
    print(HEADER, end="")
    memory_vectors()
    config_vectors()
    completion_vectors()
    message_vectors()
