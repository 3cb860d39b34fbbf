//! Quotas: a store's limits for the objects of a user, of each client, or of a prefix of ids.

use std::fmt;

use crate::vocabulary::id::ObjectId;
use crate::vocabulary::text::sizes;

/// Most quotas of a store. A put searches them in logarithmic time, at most once per byte of its
/// id.
pub const MAX_QUOTAS: usize = 1024;

/// Objects that a quota limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaSubject {
    /// Objects put by this user's programs.
    User(u32),
    /// Objects put by a client, until it disconnects. The limits apply to each client on its own.
    EachClient,
    /// Objects whose id begins with these bytes.
    Prefix(ObjectId),
}

impl fmt::Display for QuotaSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user {user}"),
            Self::EachClient => f.write_str("each client"),
            Self::Prefix(prefix) => write!(f, "prefix {prefix}"),
        }
    }
}

/// Limits of a quota. `None` sets no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[expect(missing_docs, reason = "most names say it")]
pub struct QuotaLimits {
    pub memory_bytes: Option<u64>,
    /// Most bytes in spill files. Further objects stay in memory.
    pub disk_bytes: Option<u64>,
    pub objects: Option<u64>,
}

/// Memory, disk space and objects that count towards a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QuotaUse {
    /// Bytes of shared memory, with the header of each object.
    pub memory_bytes: u64,
    /// Bytes of the objects' records in spill files.
    pub disk_bytes: u64,
    /// Number of objects, in memory or only in a spill file.
    pub objects: u64,
}

impl QuotaUse {
    pub(crate) const fn add(&mut self, added: Self) {
        self.memory_bytes += added.memory_bytes;
        self.disk_bytes += added.disk_bytes;
        self.objects += added.objects;
    }

    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            disk_bytes: self.disk_bytes.max(other.disk_bytes),
            objects: self.objects.max(other.objects),
        }
    }

    pub(crate) const fn subtract(&mut self, gone: Self) {
        self.memory_bytes -= gone.memory_bytes;
        self.disk_bytes -= gone.disk_bytes;
        self.objects -= gone.objects;
    }
}

/// A quota and its use.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct Quota {
    pub subject: QuotaSubject,
    pub limits: QuotaLimits,
    /// For [`QuotaSubject::EachClient`], the most that any client uses.
    pub used: QuotaUse,
}

/// Limited quantity of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
pub enum QuotaResource {
    Memory,
    Objects,
}

impl QuotaResource {
    /// Returns a stable name, for programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Objects => "objects",
        }
    }
}

/// A put that does not fit a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names say it")]
pub struct QuotaExcess {
    /// Limited objects.
    pub subject: QuotaSubject,
    /// Quantity that would exceed the quota.
    pub resource: QuotaResource,
    /// Bytes or objects that the put needs.
    pub needed: u64,
    /// Bytes or objects in use.
    pub used: u64,
    pub limit: u64,
}

impl QuotaExcess {
    /// Returns `true` if the put can never fit this quota.
    pub const fn is_final(&self) -> bool {
        self.needed > self.limit
    }
}

impl fmt::Display for QuotaExcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, resource, needed, used, limit } = self;
        let (amounts, noun) = match resource {
            QuotaResource::Memory => (sizes([*used, *limit, *needed]), "of memory"),
            QuotaResource::Objects => ([used, limit, needed].map(u64::to_string), "objects"),
        };
        let [used, limit, needed] = amounts;
        let subject = match subject {
            QuotaSubject::EachClient => "a client".to_owned(),
            subject => subject.to_string(),
        };
        write!(
            f,
            "the quota of {subject} is exceeded: {used} of {limit} {noun} used, {needed} more needed"
        )
    }
}
