//! Device numbers in the kernel's 32-bit form: 12 bits of major number between 20 bits of minor number.

/// Encodes `Attr::rdev` and MKNOD's `rdev`.
pub const fn encode_dev(major: u32, minor: u32) -> u32 {
    ((minor & 0xf_ff00) << 12) | ((major & 0xfff) << 8) | (minor & 0xff)
}

/// Decodes such a number to (major, minor).
pub const fn decode_dev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, ((rdev >> 12) & 0xf_ff00) | (rdev & 0xff))
}
