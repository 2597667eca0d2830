//! Mixing of bits, for hashes and checksums.

/// A bijection of 64 bits that spreads every bit over all others (the finaliser of `SplitMix64`: Steele, Lea,
/// Flood, "Fast splittable pseudorandom number generators", 2014).
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
