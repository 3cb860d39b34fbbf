/// Copies `length` bytes past the processor's caches (non-temporal stores).
///
/// A plain store first fetches the cache line, which adds a third of traffic and evicts other data.
/// C libraries do this only in long calls.
///
/// # Safety
/// Both ranges must be valid and must not overlap, as for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy_past_caches(source: *const u8, target: *mut u8, length: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE_BYTES: usize = 64;
    const LANE_BYTES: usize = size_of::<__m128i>();

    let head = target.align_offset(LINE_BYTES).min(length);
    let body = (length - head) / LINE_BYTES * LINE_BYTES;
    let tail = length - head - body;
    // SAFETY: the head is the first part of both ranges.
    unsafe { target.copy_from_nonoverlapping(source, head) };
    for offset in (head..head + body).step_by(LINE_BYTES) {
        // SAFETY: the line is in bounds of both ranges. Its target is aligned, because the head
        // ends at a line. Every x86-64 processor has the instructions.
        unsafe {
            let from = source.add(offset).cast::<__m128i>();
            let to = target.add(offset).cast::<__m128i>();
            let lanes = [0, 1, 2, 3].map(|lane| _mm_loadu_si128(from.add(lane)));
            for (lane, value) in lanes.into_iter().enumerate() {
                _mm_stream_si128(to.add(lane), value);
            }
        }
    }
    const { assert!(4 * LANE_BYTES == LINE_BYTES) };
    // SAFETY: the tail is the last part of both ranges.
    unsafe { target.add(head + body).copy_from_nonoverlapping(source.add(head + body), tail) };
    // Only a fence orders these stores before later ones, for example the store of the progress.
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _mm_sfence() };
}

/// Copies with the C library.
///
/// # Safety
/// Both ranges must be valid and must not overlap, as for [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_past_caches(source: *const u8, target: *mut u8, length: usize) {
    // SAFETY: the caller guarantees valid ranges.
    unsafe { target.copy_from_nonoverlapping(source, length) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alignment_and_length_is_copied_exactly() {
        let source: Vec<u8> = (0..=255).cycle().take(600).collect();
        for from in [0, 1, 15, 16] {
            for to in 0..70 {
                for length in [0, 1, 15, 63, 64, 65, 127, 128, 129, 500] {
                    let mut target = vec![0; 600];
                    // SAFETY: both vectors have 600 bytes, more than any sum here, and are
                    // distinct.
                    unsafe {
                        copy_past_caches(
                            source.as_ptr().add(from),
                            target.as_mut_ptr().add(to),
                            length,
                        );
                    }
                    assert!(target[..to].iter().all(|byte| *byte == 0));
                    assert!(target[to..to + length] == source[from..from + length]);
                    assert!(target[to + length..].iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}
