//! Accounts of quotas, and the charges to them.

use super::super::idle::IdleCopies;
use crate::id::ObjectId;
use crate::message::ClientId;
use crate::quota::{QuotaSubject, QuotaUse};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payer {
    /// Charged to no quota: not a put of this store's clients, or no longer pinned.
    Nobody,
    /// Charged only to id prefixes: the user is unknown, for example after a recovery.
    Unknown,
    Client {
        client: ClientId,
        user: u32,
    },
}

/// Charged objects whose sum a quota limits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Account {
    User(u32),
    Client(ClientId),
    Prefix(ObjectId),
}

/// Use of an account, and its idle copies.
pub(crate) type Balance = (QuotaUse, IdleCopies);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge<'a> {
    pub(crate) payer: Payer,
    pub(crate) id: &'a ObjectId,
    pub(crate) used: QuotaUse,
}

impl Charge<'_> {
    pub(super) fn is_of(&self, account: &Account) -> bool {
        match (self.payer, account) {
            (Payer::Nobody, _) | (Payer::Unknown, Account::User(_) | Account::Client(_)) => false,
            (Payer::Client { user: own, .. }, Account::User(user)) => own == *user,
            (Payer::Client { client: own, .. }, Account::Client(client)) => own == *client,
            (_, Account::Prefix(prefix)) => self.id.as_bytes().starts_with(prefix.as_bytes()),
        }
    }

    /// Returns the account of `subject` to which the charge would belong.
    pub(crate) fn account_of(&self, subject: &QuotaSubject) -> Option<Account> {
        let account = match (subject, self.payer) {
            (QuotaSubject::User(user), _) => Account::User(*user),
            (QuotaSubject::EachClient, Payer::Client { client, .. }) => Account::Client(client),
            (QuotaSubject::EachClient, _) => return None,
            (QuotaSubject::Prefix(prefix), _) => Account::Prefix(prefix.clone()),
        };
        self.is_of(&account).then_some(account)
    }
}
