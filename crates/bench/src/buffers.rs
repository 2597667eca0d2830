//! Memory for I/O: aligned for O_DIRECT, filled with what a workload writes.

use crate::workload::Data;

/// Alignment that O_DIRECT needs on common disks.
const ALIGN: usize = 4096;

/// Minimum length of the data that written blocks are cut from, so that small blocks do not repeat within the window of
/// a compressing file system (128 KiB).
const SOURCE: usize = 4 << 20;

/// Page-aligned memory.
#[derive(Debug)]
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// Allocates zeroed bytes.
    pub(crate) fn zeroed(len: usize) -> Self {
        let memory = vec![0_u8; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { memory, start, len }
    }

    /// Length of a source for such blocks: a whole number of them.
    pub(crate) fn source_len(block: usize) -> usize {
        SOURCE.next_multiple_of(block.max(1))
    }

    /// Makes data to write; blocks of `block` bytes are cut from it.
    pub(crate) fn source(data: Data, block: usize, seed: u64) -> Self {
        let mut source = Self::zeroed(Self::source_len(block));
        let mut rng = fastrand::Rng::with_seed(seed);
        match data {
            Data::Zeros => {}
            Data::Incompressible => rng.fill(source.bytes_mut()),
            Data::Compressible => {
                source.bytes_mut().chunks_mut(ALIGN).for_each(|page| {
                    let half = page.len() / 2;
                    rng.fill(&mut page[..half]);
                });
            }
        }
        source
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_aligned_long_enough_and_as_random_as_asked() {
        for (data, zeros) in [(Data::Zeros, 1.0), (Data::Compressible, 0.5), (Data::Incompressible, 0.0)] {
            let source = Aligned::source(data, 3 << 20, 1);
            assert_eq!(source.bytes().as_ptr() as usize % ALIGN, 0);
            assert_eq!(source.bytes().len(), 6 << 20);
            let found =
                source.bytes().iter().filter(|&&b| b == 0).count() as f64 / source.bytes().len() as f64;
            assert!((found - zeros).abs() < 0.02, "{data}: {found}");
        }
    }
}
