use std::sync::Arc;
use std::time::Duration;

use hoplite_core::node::{self, ByteRange, Until};
use hoplite_core::{Error as ObjectError, Metadata, ObjectId, Operation, PutId};
use hoplite_proto::local::{Request, Response};

use crate::connection::{Connection, Role};
use crate::deadline::Deadline;
use crate::error::{Error, LostCall, Result};
use crate::options::GetOptions;
use crate::progress::Part;
use crate::reference::Reference;
use crate::view::ObjectView;
use crate::writer::PIECE_BYTES;

/// Bytes between two wake-ups of a reader: 1,000 a second at 1 GB/s.
const STRIDE_BYTES: usize = 1 << 20;

/// Reads an object as its bytes arrive. Holds the object's memory, as a view does; dropping never
/// blocks.
#[derive(Debug)]
pub struct ObjectReader {
    bytes: hoplite_shm::Reader,
    reference: Reference,
    position_bytes: u64,
    size_bytes: u64,
    put: PutId,
    metadata: Metadata,
    is_stale: bool,
    part: Part,
}

impl ObjectReader {
    pub(crate) async fn open(
        connection: &Arc<Connection>,
        id: ObjectId,
        timeout: Duration,
    ) -> Result<Self> {
        Self::open_with(connection, id, timeout.into()).await
    }

    pub(crate) async fn open_with(
        connection: &Arc<Connection>,
        id: ObjectId,
        options: GetOptions,
    ) -> Result<Self> {
        let GetOptions { timeout, allow_stale } = options;
        let request = node::Request::Get { id, until: Until::Started, timeout, allow_stale };
        match connection.call_node(request, Operation::Get, timeout).await? {
            node::Response::Object(view) => Self::over(connection, view),
            _ => Err(connection.unexpected()),
        }
    }

    pub(crate) fn over(connection: &Arc<Connection>, view: node::ObjectView) -> Result<Self> {
        let reference = Reference::new(Arc::clone(connection), view.copy, Role::Reader);
        let bytes =
            connection.arena().reader(&view).map_err(|error| connection.misplaced(&error))?;
        Ok(Self {
            bytes,
            reference,
            position_bytes: 0,
            size_bytes: view.size_bytes,
            put: view.put,
            metadata: view.metadata,
            is_stale: view.is_stale,
            part: Part::default(),
        })
    }

    /// Copies the object's ranges from `start_bytes` on into `out` as they become valid. Skips
    /// ranges that exceed `out`.
    pub(crate) async fn read_ranges(
        &mut self,
        order: &[ByteRange],
        start_bytes: u64,
        out: &mut [u8],
        deadline: Deadline,
    ) -> Result<()> {
        let end_bytes = start_bytes + out.len() as u64;
        let is_within = |range: &ByteRange| {
            range.offset_bytes >= start_bytes
                && range.offset_bytes + range.length_bytes <= end_bytes
        };
        let total_bytes =
            order.iter().filter(|range| is_within(range)).map(|range| range.length_bytes).sum();
        let mut copied_bytes = 0;
        for range in order {
            if !is_within(range) {
                self.position_bytes += range.length_bytes;
                continue;
            }
            let mut done_bytes = 0;
            while done_bytes < range.length_bytes {
                let stride_bytes = (range.length_bytes - done_bytes).min(STRIDE_BYTES as u64);
                let counted_bytes = self.position_bytes + stride_bytes;
                if self.bytes.valid_bytes() < counted_bytes
                    && let Err(error) = self.follow(counted_bytes - 1, deadline.left()).await
                    // The needed bytes may have arrived despite the error.
                    && self.bytes.valid_bytes() < counted_bytes
                {
                    return Err(error);
                }
                let start = range.offset_bytes + done_bytes;
                let place = start - start_bytes;
                let piece = &mut out[to_index(place)..to_index(place + stride_bytes)];
                self.bytes
                    .copy_counted(counted_bytes, start, piece)
                    .map_err(|error| self.reference.connection().misplaced(&error))?;
                self.position_bytes = counted_bytes;
                copied_bytes += stride_bytes;
                self.part.reaches(copied_bytes, total_bytes);
                done_bytes += stride_bytes;
            }
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    pub(crate) async fn completed(&mut self, deadline: Deadline) -> Result<()> {
        loop {
            let valid_bytes = self.bytes.valid_bytes();
            self.part.reaches(valid_bytes.min(self.size_bytes), self.size_bytes);
            if valid_bytes >= self.size_bytes {
                return Ok(());
            }
            let next_bytes = Part::next_bytes(valid_bytes, self.size_bytes);
            if let Err(error) = self.follow(next_bytes - 1, deadline.left()).await
                && self.bytes.valid_bytes() < self.size_bytes
            {
                return Err(error);
            }
        }
    }

    pub(crate) async fn into_view(mut self, deadline: Deadline) -> Result<ObjectView> {
        self.completed(deadline).await?;
        // The store has all bytes, even if the copy's header still shows fewer.
        self.bytes.confirm(self.size_bytes);
        Ok(ObjectView::over(self.bytes, self.reference, self.put, self.metadata, self.is_stale))
    }

    /// Size of the whole object in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes read so far.
    pub fn position_bytes(&self) -> u64 {
        self.position_bytes
    }

    /// Metadata of the object.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Put that created the object.
    pub fn put_id(&self) -> PutId {
        self.put
    }

    /// Returns `true` if the object may have been deleted or replaced; see
    /// [`ObjectView::is_stale`].
    pub fn is_stale(&self) -> bool {
        self.is_stale
    }

    /// Copies the next bytes into `out`, at most 4 MiB, and returns their number. Waits for at
    /// least one byte. Returns zero at the object's end, or for an empty `out`. A cancelled call
    /// has read nothing.
    ///
    /// # Errors
    /// `Timeout`. `ObjectLost` or `Deleted` if the rest will never arrive; the bytes read so far
    /// are right. `Superseded` if a reduce of the object restarted: the bytes read so far are
    /// wrong, and the object can be read again. [`Error::ConnectionLost`], [`Error::ForkedChild`].
    pub async fn read(&mut self, out: &mut [u8], timeout: Duration) -> Result<usize> {
        self.read_at_least(out, 1, timeout).await
    }

    /// Reads as [`read`](Self::read) does, but waits for `least_bytes` (at least one), a full
    /// `out`, 4 MiB, or the object's end.
    ///
    /// # Errors
    /// As for [`read`](Self::read). `Timeout` even if fewer bytes are available.
    pub async fn read_at_least(
        &mut self,
        out: &mut [u8],
        least_bytes: usize,
        timeout: Duration,
    ) -> Result<usize> {
        if out.is_empty() || self.position_bytes >= self.size_bytes {
            return Ok(0);
        }
        let most = out.len().min(PIECE_BYTES) as u64;
        let least =
            (least_bytes as u64).min(most).min(self.size_bytes - self.position_bytes).max(1);
        let needed_bytes = self.position_bytes + least;
        let mut valid_bytes = self.bytes.valid_bytes();
        if valid_bytes < needed_bytes {
            self.follow(needed_bytes - 1, timeout).await?;
            valid_bytes = self.bytes.valid_bytes();
        }
        let there = usize::try_from(valid_bytes - self.position_bytes).unwrap_or(usize::MAX);
        let length = there.min(out.len()).min(PIECE_BYTES);
        self.bytes
            .copy_to(self.position_bytes, &mut out[..length])
            .map_err(|error| self.reference.connection().misplaced(&error))?;
        self.position_bytes += length as u64;
        self.part.reaches(self.position_bytes, self.size_bytes);
        Ok(length)
    }

    async fn read_to_end(&mut self, mut out: &mut [u8], deadline: Deadline) -> Result<()> {
        while !out.is_empty() {
            let length = self.read_at_least(out, STRIDE_BYTES, deadline.left()).await?;
            if length == 0 {
                break;
            }
            out = &mut out[length..];
            if !out.is_empty() {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    pub(crate) async fn read_whole(mut self, out: &mut [u8], deadline: Deadline) -> Result<()> {
        loop {
            let error = match self.read_to_end(out, deadline).await {
                Err(error @ Error::Object(ObjectError::Superseded { .. })) => error,
                ended => return ended,
            };
            let Error::Object(ObjectError::Superseded { id }) = &error else { return Err(error) };
            let connection = Arc::clone(self.reference.connection());
            self = Self::open(&connection, id.clone(), deadline.left()).await?;
            if self.size_bytes != out.len() as u64 {
                return Err(error);
            }
        }
    }

    async fn follow(&mut self, beyond_bytes: u64, timeout: Duration) -> Result<()> {
        let connection = self.reference.connection();
        let copy = self.reference.copy();
        let request = Request::Node(node::Request::Follow { copy, beyond_bytes, timeout });
        let answer = connection.call(request, Operation::Get, timeout).await;
        match answer.map_err(|error| error.leaving(LostCall::Ended))? {
            Response::Node(node::Response::Progress { valid_bytes })
                if valid_bytes > beyond_bytes =>
            {
                self.bytes.confirm(valid_bytes);
                Ok(())
            }
            _ => Err(connection.unexpected()),
        }
    }
}

pub(crate) fn to_index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("mapped lengths fit in usize")
}

pub(crate) async fn get_into(
    connection: &Arc<Connection>,
    id: ObjectId,
    out: &mut [u8],
    timeout: Duration,
) -> Result<usize> {
    let deadline = Deadline::after(timeout);
    let reader = ObjectReader::open(connection, id, timeout).await?;
    let given_bytes = out.len() as u64;
    let length = usize::try_from(reader.size_bytes()).unwrap_or(usize::MAX);
    let Some(out) = out.get_mut(..length) else {
        return Err(Error::BufferTooSmall { needed_bytes: reader.size_bytes(), given_bytes });
    };
    reader.read_whole(out, deadline).await?;
    Ok(length)
}

pub(crate) async fn get_vec(
    connection: &Arc<Connection>,
    id: ObjectId,
    timeout: Duration,
) -> Result<Vec<u8>> {
    let deadline = Deadline::after(timeout);
    let reader = ObjectReader::open(connection, id, timeout).await?;
    let mut bytes = vec![0; usize::try_from(reader.size_bytes()).unwrap_or(usize::MAX)];
    reader.read_whole(&mut bytes, deadline).await?;
    Ok(bytes)
}

pub(crate) async fn get_tracked(
    connection: &Arc<Connection>,
    id: ObjectId,
    options: GetOptions,
) -> Result<ObjectView> {
    let deadline = Deadline::after(options.timeout);
    loop {
        let options = GetOptions { timeout: deadline.left(), ..options };
        let reader = ObjectReader::open_with(connection, id.clone(), options).await?;
        match reader.into_view(deadline).await {
            Err(Error::Object(ObjectError::Superseded { .. })) => {}
            ended => return ended,
        }
    }
}
