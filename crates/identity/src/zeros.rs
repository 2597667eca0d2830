//! Large tables of zeros: the system gives their pages when they are first written to.

use zerocopy::{FromZeros, KnownLayout};

/// A table of `count` zeros.
pub fn zeros<T: FromZeros + KnownLayout>(count: usize) -> Box<[T]>
where
    [T]: KnownLayout<PointerMetadata = usize>,
{
    let table = <[T]>::new_box_zeroed_with_elems(count);
    table.unwrap_or_else(|_| std::iter::repeat_with(T::new_zeroed).take(count).collect())
}

#[cfg(test)]
mod tests {
    use fsstack_sync::unmodelled::atomic::AtomicU64;
    use fsstack_sync::unmodelled::atomic::Ordering::Relaxed;

    #[test]
    fn a_table_has_all_its_zeros() {
        let table = super::zeros::<[AtomicU64; 2]>(1 << 10);
        table[1023][1].store(7, Relaxed);
        let sum: u64 = table.iter().flatten().map(|word| word.load(Relaxed)).sum();
        assert_eq!((table.len(), sum), (1 << 10, 7));
    }
}
