//! Counts heap allocations per thread: a global allocator for tests that install it.
#![allow(unsafe_code, reason = "an allocator is unsafe to write")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of allocations per thread.
#[derive(Debug)]
pub struct Counting;

fn count() {
    // A thread that ends may still allocate, after its thread-locals are gone.
    let _counted = TAKEN.try_with(|taken| taken.set(taken.get() + 1));
}

// SAFETY: every call goes to the system's allocator with the caller's own arguments. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps alloc's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps dealloc's contract: `at` came from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps realloc's contract: `at` came from the system's allocator.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs `work` on the calling thread. Returns its result and its number of allocations, where [`Counting`] is the
/// global allocator.
pub fn scope<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = TAKEN.get();
    let result = work();
    (result, TAKEN.get() - before)
}
