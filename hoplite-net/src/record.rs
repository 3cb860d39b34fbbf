//! Records detect each changed, lost or repeated byte of the control plane on plain TCP.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..2 | length of the body, little-endian |
//! | 2..4 | the length again, each bit inverted |
//! | 4.. | the body: up to [`MAX_PLAIN_BYTES`] bytes, then a tag or checksum of them |
//!
//! If both sides have the token, AES-128-GCM seals the body. The keys come from the handshake, and
//! the nonces count the records. Otherwise the body ends with a CRC-32C of the record's number, its
//! header and the bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use bytes::{Buf, BufMut, BytesMut};
use hoplite_core::checksum::Checksum;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Most bytes in a record, because a reader must wait for a whole record.
pub const MAX_PLAIN_BYTES: usize = 32 << 10;
pub(super) const KEY_BYTES: usize = 16;

const HEADER_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 4;
const SEAL_BYTES: usize = 16;
const READ_BYTES: usize = 8 << 10;

/// A record was changed, lost or repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record was changed on its way")]
pub struct DamagedRecord;

impl From<DamagedRecord> for io::Error {
    fn from(damaged: DamagedRecord) -> Self {
        Self::new(io::ErrorKind::InvalidData, damaged)
    }
}

enum Check {
    Checksum,
    Seal(Box<LessSafeKey>),
}

impl Check {
    fn new(key: Option<[u8; KEY_BYTES]>) -> Self {
        key.map_or(Self::Checksum, |key| {
            let key =
                UnboundKey::new(&AES_128_GCM, &key).expect("a key of this cipher has 16 bytes");
            Self::Seal(Box::new(LessSafeKey::new(key)))
        })
    }

    const fn overhead_bytes(&self) -> usize {
        match self {
            Self::Checksum => CHECKSUM_BYTES,
            Self::Seal(_) => SEAL_BYTES,
        }
    }
}

/// Splits outgoing bytes into encrypted or checksummed records.
pub struct Sealer {
    check: Check,
    next: u64,
}

/// Checks incoming records, and takes their bytes out.
pub struct Opener {
    check: Check,
    next: u64,
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").field("next", &self.next).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("next", &self.next).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(super) fn new(key: Option<[u8; KEY_BYTES]>) -> Self {
        Self { check: Check::new(key), next: 0 }
    }

    /// Appends `plain` to `out`, in records.
    pub fn seal(&mut self, plain: &[u8], out: &mut BytesMut) {
        for part in plain.chunks(MAX_PLAIN_BYTES) {
            let length = u16::try_from(part.len() + self.check.overhead_bytes())
                .expect("the longest record fits its length");
            let header = header(length);
            out.reserve(HEADER_BYTES + usize::from(length));
            out.put_slice(&header);
            let start = out.len();
            out.put_slice(part);
            match &self.check {
                Check::Checksum => out.put_u32_le(checksum(self.next, &header, part)),
                Check::Seal(key) => {
                    let sealed = key.seal_in_place_separate_tag(
                        nonce(self.next),
                        Aad::from(header),
                        &mut out[start..],
                    );
                    out.put_slice(
                        sealed.expect("a record is shorter than the cipher allows").as_ref(),
                    );
                }
            }
            self.next += 1;
        }
    }
}

impl Opener {
    pub(super) fn new(key: Option<[u8; KEY_BYTES]>) -> Self {
        Self { check: Check::new(key), next: 0 }
    }

    /// Moves the contents of complete records from `raw` to `plain`.
    ///
    /// # Errors
    /// [`DamagedRecord`], after which the connection is unusable.
    pub fn open(&mut self, raw: &mut BytesMut, plain: &mut BytesMut) -> Result<(), DamagedRecord> {
        while let Some(header) = raw.first_chunk::<HEADER_BYTES>().copied() {
            let length = length(header, self.check.overhead_bytes())?;
            if raw.len() < HEADER_BYTES + length {
                break;
            }
            raw.advance(HEADER_BYTES);
            let mut body = raw.split_to(length);
            match &self.check {
                Check::Checksum => {
                    let (part, found) = body.split_at(length - CHECKSUM_BYTES);
                    if found != checksum(self.next, &header, part).to_le_bytes() {
                        return Err(DamagedRecord);
                    }
                    plain.extend_from_slice(part);
                }
                Check::Seal(key) => {
                    let part = key.open_in_place(nonce(self.next), Aad::from(header), &mut body);
                    plain.extend_from_slice(part.map_err(|_| DamagedRecord)?);
                }
            }
            self.next += 1;
        }
        Ok(())
    }
}

fn header(length: u16) -> [u8; HEADER_BYTES] {
    let [a, b] = length.to_le_bytes();
    [a, b, !a, !b]
}

fn length([a, b, c, d]: [u8; HEADER_BYTES], overhead_bytes: usize) -> Result<usize, DamagedRecord> {
    let length = usize::from(u16::from_le_bytes([a, b]));
    let is_sound = c == !a && d == !b;
    let is_possible = (overhead_bytes + 1..=overhead_bytes + MAX_PLAIN_BYTES).contains(&length);
    if is_sound && is_possible { Ok(length) } else { Err(DamagedRecord) }
}

fn checksum(number: u64, header: &[u8], plain: &[u8]) -> u32 {
    let mut checksum = Checksum::default();
    checksum.update(&number.to_le_bytes());
    checksum.update(header);
    checksum.update(plain);
    checksum.finish()
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Stream of bytes in records.
#[derive(Debug)]
pub struct Checked<S> {
    stream: S,
    sealer: Sealer,
    opener: Opener,
    raw: BytesMut,
    plain: BytesMut,
    unsent: BytesMut,
}

impl<S> Checked<S> {
    /// Wraps a stream.
    pub fn new(stream: S, (sealer, opener): (Sealer, Opener)) -> Self {
        let [raw, plain, unsent] = [(); 3].map(|()| BytesMut::new());
        Self { stream, sealer, opener, raw, plain, unsent }
    }
}

impl<S: AsyncWrite + Unpin> Checked<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.unsent.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Checked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.plain.is_empty() {
            this.raw.reserve(READ_BYTES);
            let read = tokio_util::io::poll_read_buf(Pin::new(&mut this.stream), cx, &mut this.raw);
            match ready!(read)? {
                0 if this.raw.is_empty() => return Poll::Ready(Ok(())),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                _ => this.opener.open(&mut this.raw, &mut this.plain)?,
            }
        }
        let count = this.plain.len().min(buffer.remaining());
        buffer.put_slice(&this.plain[..count]);
        this.plain.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Checked<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_send(cx))?;
        let this = &mut *self;
        let part = &bytes[..bytes.len().min(MAX_PLAIN_BYTES)];
        this.unsent.clear();
        this.sealer.seal(part, &mut this.unsent);
        match this.poll_send(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(part.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn pair(is_sealed: bool) -> (Sealer, Opener) {
        let key = is_sealed.then_some([7; KEY_BYTES]);
        (Sealer::new(key), Opener::new(key))
    }

    fn opened(opener: &mut Opener, raw: &[u8]) -> Result<Vec<u8>, DamagedRecord> {
        let (mut raw, mut plain) = (BytesMut::from(raw), BytesMut::new());
        opener.open(&mut raw, &mut plain)?;
        Ok(plain.to_vec())
    }

    #[test]
    fn every_changed_bit_is_found() {
        for is_sealed in [true, false] {
            let mut sealed = BytesMut::new();
            pair(is_sealed).0.seal(b"Hoplite", &mut sealed);
            for bit in 0..sealed.len() * 8 {
                let mut changed = sealed.to_vec();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    opened(&mut pair(is_sealed).1, &changed),
                    Err(DamagedRecord),
                    "bit {bit}"
                );
            }
        }
    }

    #[test]
    fn records_that_are_left_out_or_repeated_are_found() {
        for is_sealed in [true, false] {
            let (mut sealer, mut opener) = pair(is_sealed);
            let [first, second] = [b"first", b"other"].map(|plain| {
                let mut sealed = BytesMut::new();
                sealer.seal(plain, &mut sealed);
                sealed
            });
            assert_eq!(
                opened(&mut pair(is_sealed).1, &second),
                Err(DamagedRecord),
                "the first one is missing"
            );
            assert_eq!(opened(&mut opener, &first).unwrap(), b"first");
            assert_eq!(opened(&mut opener, &first), Err(DamagedRecord), "it comes a second time");
        }
    }

    #[test]
    fn another_key_opens_nothing() {
        let mut sealed = BytesMut::new();
        pair(true).0.seal(b"Hoplite", &mut sealed);
        assert_eq!(opened(&mut Opener::new(Some([8; KEY_BYTES])), &sealed), Err(DamagedRecord));
        assert_eq!(opened(&mut Opener::new(None), &sealed), Err(DamagedRecord));
        assert!(!sealed.windows(7).any(|part| part == b"Hoplite"), "sealed bytes are hidden");
    }

    #[tokio::test]
    async fn bytes_pass_a_narrow_stream_and_end_with_it() {
        for is_sealed in [true, false] {
            let (near, far) = duplex(1000);
            let (mut near, mut far) =
                (Checked::new(near, pair(is_sealed)), Checked::new(far, pair(is_sealed)));
            let bytes: Vec<u8> = (0..200_000_u32).map(|number| (number % 251) as u8).collect();
            let write = async {
                near.write_all(&bytes).await.unwrap();
                near.shutdown().await.unwrap();
            };
            let mut received = Vec::new();
            let ((), read) = tokio::join!(write, far.read_to_end(&mut received));
            assert_eq!(read.unwrap(), bytes.len());
            assert!(received == bytes);
        }
    }

    #[tokio::test]
    async fn a_stream_that_ends_within_a_record_is_an_error() {
        let mut sealed = BytesMut::new();
        pair(true).0.seal(b"Hoplite", &mut sealed);
        let mut cut = Checked::new(&sealed[..10], pair(true));
        let error = cut.read_to_end(&mut Vec::new()).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_waited_for(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for is_sealed in [true, false] {
                if let Ok(plain) = opened(&mut pair(is_sealed).1, &bytes) {
                    prop_assert!(plain.is_empty());
                }
            }
        }
    }
}
