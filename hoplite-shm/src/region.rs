use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU8, Ordering};

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::header::{Header, HeaderHandle, HeaderView};
use crate::stream::copy_past_caches;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}

/// A shared mapping of an arena, or of its first bytes.
///
/// Methods check bounds and access. The crate's "Memory model" defines safety between processes.
#[derive(Debug)]
pub(crate) struct Region {
    map: MmapRaw,
    access: Access,
}

impl Region {
    /// Maps the first `length` bytes of `fd`. Its file must be as long, because an access beyond
    /// the end kills the process (SIGBUS).
    pub(crate) fn map(fd: BorrowedFd<'_>, length: usize, access: Access) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(length);
        let map = match access {
            Access::ReadOnly => options.map_raw_read_only(fd.as_raw_fd())?,
            Access::Writable => options.map_raw(fd.as_raw_fd())?,
        };
        // Huge pages save page faults and TLB misses; a kernel may lack them.
        let _ = map.advise(Advice::HugePage);
        Ok(Self { map, access })
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn access(&self) -> Access {
        self.access
    }

    pub(crate) fn header_view(&self, offset: usize) -> HeaderView<'_> {
        HeaderView::new(self.header_at(offset))
    }

    pub(crate) fn header_handle(&self, offset: usize) -> HeaderHandle<'_> {
        self.assert_writable();
        HeaderHandle::new(self.header_at(offset))
    }

    fn header_at(&self, offset: usize) -> &Header {
        let pointer = self.pointer(&(offset..offset + size_of::<Header>())).cast::<Header>();
        assert!(pointer.is_aligned(), "headers start at multiples of their alignment");
        // SAFETY: the pointer is aligned and in bounds of memory that stays mapped as long as
        // `self` is borrowed. Every bit pattern is a valid header. All fields are atomics, so other
        // processes may write them at any time. If the memory is read-only, `header_handle` panics
        // and `HeaderView` only performs relaxed loads.
        unsafe { &*pointer }
    }

    pub(crate) fn copy_in(&self, range: Range<usize>, bytes: &[u8]) {
        self.assert_writable();
        assert_eq!(range.len(), bytes.len());
        // SAFETY: `pointer` has checked the bounds, and the memory is writable. Only a slice of a
        // complete object may overlap it, and complete objects are never written.
        unsafe { self.pointer(&range).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    pub(crate) fn copy_in_past_caches(&self, range: Range<usize>, bytes: &[u8]) {
        self.assert_writable();
        assert_eq!(range.len(), bytes.len());
        // SAFETY: the reasons of `copy_in` hold.
        unsafe { copy_past_caches(bytes.as_ptr(), self.pointer(&range), bytes.len()) }
    }

    pub(crate) fn copy_out<'a>(
        &self,
        range: Range<usize>,
        out: &'a mut [MaybeUninit<u8>],
    ) -> &'a mut [u8] {
        assert_eq!(range.len(), out.len());
        // SAFETY: `pointer` has checked the bounds, and `out` is exclusive. No reference into the
        // memory is formed. If another process writes these bytes against the protocol, their
        // values are unspecified, but still bytes.
        unsafe {
            out.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(self.pointer(&range), out.len())
        }
        // SAFETY: all of `out` was just written.
        unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
    }

    /// Lends the memory at `range`.
    ///
    /// # Safety
    /// No process may write these bytes while the slice lives.
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: `pointer` has checked the bounds, and the memory stays mapped as long as `self`
        // is borrowed. The caller guarantees that it does not change.
        unsafe { std::slice::from_raw_parts(self.pointer(&range), range.len()) }
    }

    pub(crate) fn receive(&self, socket: BorrowedFd<'_>, range: Range<usize>) -> io::Result<usize> {
        self.assert_writable();
        let pointer = self.pointer(&range);
        retry_interrupted(|| {
            // SAFETY: `pointer` has checked the bounds, and the memory is writable and stays mapped
            // during the call.
            unsafe {
                libc::recv(socket.as_raw_fd(), pointer.cast(), range.len(), libc::MSG_DONTWAIT)
            }
        })
    }

    pub(crate) fn send(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        range: Range<usize>,
    ) -> io::Result<usize> {
        let mut parts = [
            libc::iovec { iov_base: head.as_ptr().cast_mut().cast(), iov_len: head.len() },
            libc::iovec { iov_base: self.pointer(&range).cast(), iov_len: range.len() },
        ];
        // SAFETY: a message header consists of numbers and pointers, for which zero means none.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        retry_interrupted(|| {
            // SAFETY: `message` refers to two parts that are in bounds and stay valid during the
            // call. The call only reads them.
            unsafe {
                libc::sendmsg(
                    socket.as_raw_fd(),
                    &raw const message,
                    libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                )
            }
        })
    }

    pub(crate) fn advise(&self, advice: Advice, range: Range<usize>) -> io::Result<()> {
        self.map.advise_range(advice, range.start, range.len())
    }

    /// Touches each page with a write that keeps its bytes, even under concurrent writes.
    pub(crate) fn touch(&self, range: Range<usize>, page_bytes: usize) {
        self.assert_writable();
        for offset in range.step_by(page_bytes) {
            let pointer = self.pointer(&(offset..offset + 1));
            // SAFETY: the pointer is in bounds of mapped, writable memory. A concurrent writer
            // without atomics is in the kernel, or treats the byte as foreign memory, as this code
            // does. An atomic exchange that stores the present value loses no update of such a
            // writer.
            let byte = unsafe { AtomicU8::from_ptr(pointer) };
            // Compilers turn `fetch_or(0)` into a fence that does not touch the page. A failed
            // exchange shows another write to the page.
            let value = byte.load(Ordering::Relaxed);
            let _ = byte.compare_exchange(value, value, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    pub(crate) fn pointer(&self, range: &Range<usize>) -> *mut u8 {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "bytes {range:?} of {} mapped bytes",
            self.len()
        );
        self.map.as_mut_ptr().wrapping_add(range.start)
    }

    fn assert_writable(&self) {
        assert_eq!(self.access, Access::Writable, "a read-only mapping is not written");
    }
}

fn retry_interrupted(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(bytes) = usize::try_from(call()) {
            return Ok(bytes);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}
