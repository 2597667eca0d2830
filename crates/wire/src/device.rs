//! Device numbers as the kernel's 32 bits carry them: 12 bits of major between 20 bits of minor.

/// Value of `Attr::rdev` and of MKNOD's `rdev` for that device.
pub const fn encode_dev(major: u32, minor: u32) -> u32 {
    ((minor & 0xf_ff00) << 12) | ((major & 0xfff) << 8) | (minor & 0xff)
}

/// The (major, minor) of such a number.
pub const fn decode_dev(rdev: u32) -> (u32, u32) {
    ((rdev >> 8) & 0xfff, ((rdev >> 12) & 0xf_ff00) | (rdev & 0xff))
}
