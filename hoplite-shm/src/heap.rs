/// Part of `resident_bytes` that the program has freed but the allocator keeps; zero
/// without GNU's C library.
#[cfg(target_env = "gnu")]
pub fn free_heap_bytes(resident_bytes: u64) -> u64 {
    // SAFETY: the function only reads the allocator's own state, under its locks.
    let heap = unsafe { libc::mallinfo() };
    // Both numbers wrap around at 32 bits, and so does their difference, which is below 2 GiB
    // unless the allocator keeps more.
    let used = (heap.uordblks as u32).wrapping_add(heap.hblkhd as u32);
    let kept = (resident_bytes as u32).wrapping_sub(used);
    u64::from(if kept > i32::MAX as u32 { 0 } else { kept })
}

/// Returns free pages to the system. Blocks other allocating threads.
#[cfg(target_env = "gnu")]
pub fn return_free_pages() {
    // SAFETY: the call only drops pages without a used piece, under the allocator's locks.
    unsafe { libc::malloc_trim(0) };
}

/// Returns zero: this C library does not report the number.
#[cfg(not(target_env = "gnu"))]
pub fn free_heap_bytes(_resident_bytes: u64) -> u64 {
    0
}

/// Does nothing: other allocators return memory unasked.
#[cfg(not(target_env = "gnu"))]
pub fn return_free_pages() {}
