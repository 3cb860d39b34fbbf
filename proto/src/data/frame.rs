//! Frames of the data plane: a fixed header, then a payload.
//!
//! All numbers are little-endian.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0..4 | magic, `HPLD` |
//! | 4 | version of the framing |
//! | 5 | kind |
//! | 6..8 | zero |
//! | 8..12 | length of the payload in bytes |
//! | 12..16 | CRC-32C of the payload |
//! | 16..24 | offset in the object; zero except in blocks |
//! | 24..28 | CRC-32C of bytes 0..24 |
//!
//! The header has a separate checksum, so that a damaged length or offset is never used. The
//! payload of a [`Kind::Block`] is raw bytes of the object. The payloads of [`Kind::Combined`],
//! [`Kind::Release`], [`Kind::Filled`], [`Kind::Commit`], [`Kind::Probe`] and [`Kind::Armed`] are
//! empty. All other payloads are messages of `data.proto`. The offset of a block that answers a
//! [`Kind::Take`] is a position in that stream.

use hoplite_core::checksum::crc32c;

/// Length of an encoded header.
pub const HEADER_BYTES: usize = 28;
/// Longest payload of a block.
pub const MAX_BLOCK_BYTES: u32 = hoplite_core::plan::blocks::MAX_BLOCK_BYTES as u32;
/// Longest payload of other frames.
pub const MAX_CONTROL_BYTES: u32 = 64 << 10;

const MAGIC: [u8; 4] = *b"HPLD";
const FRAMING_VERSION: u8 = 1;
const CHECKED_BYTES: usize = 24;

/// A frame's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `DataHello`, first in each direction.
    Hello = 1,
    /// `Pull`, receiver to sender.
    Pull = 2,
    /// Raw bytes of an object, sender to receiver.
    Block = 3,
    /// `End` of a transfer, from its sender, or of a hop, from the combining store.
    End = 4,
    /// `Keepalive`, from a transfer's sender, or from either side of a hop.
    Keepalive = 5,
    /// `DigestRequest`, receiver to sender.
    DigestRequest = 6,
    /// `Digest`, answering `DigestRequest`.
    Digest = 7,
    /// `Combine`, coordinator to store: perform a hop.
    Combine = 8,
    /// Store to coordinator: the hop's output is complete.
    Combined = 9,
    /// Coordinator to store: end the hop, the membership in a collective, or the part in a
    /// measurement.
    Release = 10,
    /// `DataProof` that the sender knows the token, after the hellos if both sides have one.
    Proof = 11,
    /// `Enlist`, coordinator to member.
    Enlist = 12,
    /// Member to coordinator: the member's copy has all bytes.
    Filled = 13,
    /// Coordinator to member: the member's copy is the collective's target.
    Commit = 14,
    /// `Stop`, coordinator to member: the attempt is aborted.
    Stop = 15,
    /// `Take`, member to member: send the bytes that the schedule gives to the requester.
    Take = 16,
    /// `Reject`, coordinator to participants' stores: an attempt fails. Answered by `End`.
    Reject = 17,
    /// Coordinator to store: take part in a measurement of the network.
    Probe = 18,
    /// `ProbeReady`, answering `Probe`.
    ProbeReady = 19,
    /// `Arm`, coordinator to store: answer a peer's measurements.
    Arm = 20,
    /// Answers `Arm`.
    Armed = 21,
    /// `Measure`, coordinator to store.
    Measure = 22,
    /// `Found`, answering `Measure`.
    Found = 23,
    /// `Echo`, both ways.
    Echo = 24,
    /// `TakeTrain`: send a burst of blocks, then `End`.
    TakeTrain = 25,
    /// `AskPosition`, store to store. Answered by `Position`.
    AskPosition = 26,
    /// `Position`, answering `AskPosition`.
    Position = 27,
    /// `Lanes`, sender to receiver: open further connections.
    Lanes = 28,
    /// `Lane`, receiver to sender: use this connection too.
    Lane = 29,
    /// `DrainStore`, since version 9. Answered by `DrainAnswer`.
    DrainStore = 40,
    /// A drain's report, answering `DrainStore`.
    DrainAnswer = 41,
}

impl Kind {
    const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Hello,
            2 => Self::Pull,
            3 => Self::Block,
            4 => Self::End,
            5 => Self::Keepalive,
            6 => Self::DigestRequest,
            7 => Self::Digest,
            8 => Self::Combine,
            9 => Self::Combined,
            10 => Self::Release,
            11 => Self::Proof,
            12 => Self::Enlist,
            13 => Self::Filled,
            14 => Self::Commit,
            15 => Self::Stop,
            16 => Self::Take,
            17 => Self::Reject,
            18 => Self::Probe,
            19 => Self::ProbeReady,
            20 => Self::Arm,
            21 => Self::Armed,
            22 => Self::Measure,
            23 => Self::Found,
            24 => Self::Echo,
            25 => Self::TakeTrain,
            26 => Self::AskPosition,
            27 => Self::Position,
            28 => Self::Lanes,
            29 => Self::Lane,
            40 => Self::DrainStore,
            41 => Self::DrainAnswer,
            _ => return None,
        })
    }

    const fn max_length_bytes(self) -> u32 {
        match self {
            Self::Block => MAX_BLOCK_BYTES,
            Self::Combined
            | Self::Release
            | Self::Filled
            | Self::Commit
            | Self::Probe
            | Self::Armed => 0,
            _ => MAX_CONTROL_BYTES,
        }
    }
}

/// Reason to reject a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum FrameError {
    /// The bytes are no frame.
    #[error("not a frame of this protocol: it starts with {found:02x?}")]
    BadMagic {
        /// First four bytes.
        found: [u8; 4],
    },
    #[error("framing version {theirs}, this is version {FRAMING_VERSION}")]
    BadVersion {
        /// The peer's version.
        theirs: u8,
    },
    #[error("the header of a frame is damaged")]
    HeaderDamaged,
    /// Unknown kind, or nonzero reserved bytes.
    #[error("unknown kind of frame {number}")]
    UnknownKind { number: u8 },
    #[error("a frame of kind {kind:?} claims {length_bytes} bytes")]
    TooLong { kind: Kind, length_bytes: u32 },
    #[error("the payload of a frame of kind {kind:?} is damaged")]
    PayloadDamaged { kind: Kind },
}

/// Checked header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    kind: Kind,
    length_bytes: u32,
    payload_crc: u32,
    offset_bytes: u64,
}

impl Header {
    /// Makes the header of a block; `None` if the block is too long.
    pub fn block(offset_bytes: u64, length_bytes: u64, payload_crc: u32) -> Option<Self> {
        let length_bytes =
            u32::try_from(length_bytes).ok().filter(|length| *length <= MAX_BLOCK_BYTES)?;
        Some(Self { kind: Kind::Block, length_bytes, payload_crc, offset_bytes })
    }

    /// Makes another frame's header; `None` if the payload is too long.
    pub fn control(kind: Kind, payload: &[u8]) -> Option<Self> {
        let length_bytes = u32::try_from(payload.len())
            .ok()
            .filter(|length| *length <= kind.max_length_bytes())?;
        Some(Self { kind, length_bytes, payload_crc: crc32c(payload), offset_bytes: 0 })
    }

    /// The kind.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Payload's length, within its kind's limit.
    pub const fn length_bytes(&self) -> u32 {
        self.length_bytes
    }

    /// A block's offset in the object.
    pub const fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Checks the received payload's checksum.
    pub const fn check_payload(&self, crc: u32) -> Result<(), FrameError> {
        if crc == self.payload_crc {
            Ok(())
        } else {
            Err(FrameError::PayloadDamaged { kind: self.kind })
        }
    }

    /// Encodes the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4] = FRAMING_VERSION;
        bytes[5] = self.kind as u8;
        bytes[8..12].copy_from_slice(&self.length_bytes.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.payload_crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset_bytes.to_le_bytes());
        let crc = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Checks the first bytes of a header, at least one, to detect another protocol early.
    pub fn check_start(bytes: &[u8]) -> Result<(), FrameError> {
        let length = bytes.len().min(MAGIC.len());
        if bytes[..length] == MAGIC[..length] {
            return Ok(());
        }
        let mut found = [0; MAGIC.len()];
        found[..length].copy_from_slice(&bytes[..length]);
        Err(FrameError::BadMagic { found })
    }

    /// Decodes and checks a header.
    ///
    /// # Errors
    /// Every [`FrameError`] except [`FrameError::PayloadDamaged`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let [_, _, _, _, version, number, zero0, zero1, rest @ ..] = *bytes;
        let [l0, l1, l2, l3, p0, p1, p2, p3, o0, o1, o2, o3, o4, o5, o6, o7, c0, c1, c2, c3] = rest;
        Self::check_start(bytes)?;
        // Another version may have its checksum elsewhere.
        if version != FRAMING_VERSION {
            return Err(FrameError::BadVersion { theirs: version });
        }
        if u32::from_le_bytes([c0, c1, c2, c3]) != crc32c(&bytes[..CHECKED_BYTES]) {
            return Err(FrameError::HeaderDamaged);
        }
        let kind = Kind::from_number(number).filter(|_| [zero0, zero1] == [0, 0]);
        let Some(kind) = kind else { return Err(FrameError::UnknownKind { number }) };
        let length_bytes = u32::from_le_bytes([l0, l1, l2, l3]);
        if length_bytes > kind.max_length_bytes() {
            return Err(FrameError::TooLong { kind, length_bytes });
        }
        let payload_crc = u32::from_le_bytes([p0, p1, p2, p3]);
        let offset_bytes = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        Ok(Self { kind, length_bytes, payload_crc, offset_bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sealed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
        let crc = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn any_header() -> impl Strategy<Value = Header> {
        let block = (any::<u64>(), 0..=MAX_BLOCK_BYTES, any::<u32>())
            .prop_map(|(offset, length, crc)| Header::block(offset, length.into(), crc).unwrap());
        let control = (1_u8..=17, prop::collection::vec(any::<u8>(), 0..300)).prop_map(
            |(number, payload)| {
                let kind = Kind::from_number(number).unwrap();
                Header::control(kind, if kind.max_length_bytes() == 0 { &[] } else { &payload })
                    .unwrap()
            },
        );
        prop_oneof![block, control]
    }

    #[test]
    fn a_header_is_laid_out_as_documented() {
        let bytes =
            Header::block(0x0102_0304_0506_0708, 0x000a_0b0c, 0xdead_beef).unwrap().encode();
        assert_eq!(&bytes[..8], b"HPLD\x01\x03\0\0");
        assert_eq!(&bytes[8..16], b"\x0c\x0b\x0a\0\xef\xbe\xad\xde");
        assert_eq!(&bytes[16..24], b"\x08\x07\x06\x05\x04\x03\x02\x01");
    }

    #[test]
    fn each_fault_has_its_error() {
        let good = Header::control(Kind::Pull, b"payload").unwrap().encode();
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), Err(FrameError::BadMagic { found: [0; 4] }));

        let mut other_version = good;
        other_version[4] = 2;
        assert_eq!(Header::decode(&other_version), Err(FrameError::BadVersion { theirs: 2 }));

        let mut unknown = good;
        unknown[5] = 99;
        assert_eq!(Header::decode(&unknown), Err(FrameError::HeaderDamaged));
        assert_eq!(Header::decode(&sealed(unknown)), Err(FrameError::UnknownKind { number: 99 }));

        let mut reserved = good;
        reserved[6] = 1;
        assert_eq!(
            Header::decode(&sealed(reserved)),
            Err(FrameError::UnknownKind { number: Kind::Pull as u8 })
        );

        let mut long = good;
        long[8..12].copy_from_slice(&(MAX_CONTROL_BYTES + 1).to_le_bytes());
        let expected =
            FrameError::TooLong { kind: Kind::Pull, length_bytes: MAX_CONTROL_BYTES + 1 };
        assert_eq!(Header::decode(&sealed(long)), Err(expected));

        let header = Header::decode(&good).unwrap();
        assert_eq!(header.check_payload(crc32c(b"payload")), Ok(()));
        let damaged = Err(FrameError::PayloadDamaged { kind: Kind::Pull });
        assert_eq!(header.check_payload(crc32c(b"pbyload")), damaged);
    }

    #[test]
    fn other_protocols_are_recognised_by_their_first_bytes() {
        assert_eq!(Header::check_start(b""), Ok(()));
        assert_eq!(Header::check_start(b"HP"), Ok(()));
        assert_eq!(Header::check_start(b"HPLD\x01"), Ok(()));
        assert_eq!(Header::check_start(b"HT"), Err(FrameError::BadMagic { found: *b"HT\0\0" }));
        assert_eq!(Header::check_start(&[0; 8]), Err(FrameError::BadMagic { found: [0; 4] }));
    }

    #[test]
    fn nothing_too_long_is_ever_encoded() {
        assert!(Header::block(0, u64::from(MAX_BLOCK_BYTES) + 1, 0).is_none());
        assert!(Header::block(0, u64::MAX, 0).is_none());
        assert!(Header::control(Kind::End, &vec![0; 64 << 10]).is_some());
        assert!(Header::control(Kind::End, &vec![0; (64 << 10) + 1]).is_none());
        for kind in [Kind::Combined, Kind::Release, Kind::Filled, Kind::Commit] {
            assert!(Header::control(kind, &[0]).is_none());
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode()), Ok(header));
        }

        #[test]
        fn a_flipped_bit_is_always_found(header in any_header(), bit in 0..HEADER_BYTES * 8) {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in any::<[u8; HEADER_BYTES]>()) {
            prop_assert!(Header::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_fields_are_bounded(tail in any::<[u8; HEADER_BYTES - 5]>()) {
            let mut bytes = [0; HEADER_BYTES];
            bytes[..4].copy_from_slice(&MAGIC);
            bytes[4] = FRAMING_VERSION;
            bytes[5..].copy_from_slice(&tail);
            bytes[5] %= 19;
            bytes[6..8].fill(0);
            if let Ok(header) = Header::decode(&sealed(bytes)) {
                prop_assert!(header.length_bytes() <= header.kind().max_length_bytes());
                prop_assert_eq!(header.encode(), sealed(bytes));
            }
        }
    }
}
