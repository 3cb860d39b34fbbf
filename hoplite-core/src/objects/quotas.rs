//! Quotas: limits for the objects that programs of this node put here.
//!
//! From its creation, a put is charged to its user, to each quota whose prefix begins its id, and
//! to its client until the client disconnects. The charge ends when the copy becomes evictable or
//! is removed, for a deleted copy after the last client's release. A copy in a file is charged for
//! disk, and without memory if it is only there. A reduce's target is charged from the reservation
//! of its memory. Copies that gets or the directory's orders bring are charged to no quota.
//!
//! A put that does not fit waits until the use falls or the quota changes. If it lacks memory, the
//! store moves idle copies of that quota to files, provided that they free enough. Reloads of
//! spilled copies are always permitted, so memory may exceed the limit. Copies beyond a quota of
//! disk stay in memory.

mod accounts;
mod disk;
mod spill;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::idle::IdleCopies;
use super::notice::SpaceWaiter;
use super::queue::Queue;
use crate::error::{Error, Result};
use crate::id::ObjectId;
use crate::message::{ClientId, CopyId};
use crate::quota::{
    MAX_QUOTAS, Quota, QuotaExcess, QuotaLimits, QuotaResource, QuotaSubject, QuotaUse,
};

pub(crate) use accounts::{Account, Balance, Charge, Payer};

#[derive(Debug, Default)]
struct Entry {
    limits: QuotaLimits,
    used: QuotaUse,
    /// Charged copies whose memory the store could free.
    idle: IdleCopies,
    /// Least memory that a waiting put needs.
    awaited_bytes: Option<u64>,
    /// Idle copies for which this quota of disk lacks room, by memory.
    barred: BTreeSet<(u64, CopyId)>,
    /// Last value of [`Quotas::retries`] at which a put exceeded this quota.
    awaited_in: Option<u64>,
    /// `true` if the use of disk has fallen since the last [`Quotas::take_readmitted`].
    has_new_disk: bool,
}

#[derive(Debug)]
struct Client {
    user: u32,
    /// `None` unless a quota limits each client.
    entry: Option<Entry>,
}

#[derive(Debug, Default)]
pub(crate) struct Quotas {
    users: BTreeMap<u32, Entry>,
    prefixes: BTreeMap<ObjectId, Entry>,
    each_client: Option<QuotaLimits>,
    /// All connected clients.
    clients: BTreeMap<ClientId, Client>,
    /// Memory for reduces' targets whose copies do not exist yet.
    reserved: BTreeMap<ObjectId, (Payer, QuotaUse)>,
    waiters: Queue<SpaceWaiter>,
    /// Number of times at which all waiters tried again.
    retries: u64,
    pub(crate) has_new_room: bool,
    has_new_disk: bool,
    /// Barred copies of quotas that were changed or removed.
    readmitted: Vec<CopyId>,
    /// Bytes of memory to spill for waiting puts.
    to_spill: BTreeMap<Account, u64>,
    /// Account for which the latest batch was spilled.
    last_spilled: Option<Account>,
}

impl Quotas {
    pub(crate) fn client_connected(&mut self, client: ClientId, user: u32) {
        let entry = self.each_client.map(|limits| Entry { limits, ..Entry::default() });
        self.clients.insert(client, Client { user, entry });
    }

    pub(crate) fn client_gone(&mut self, client: ClientId) {
        if let Some(Client { entry: Some(entry), .. }) = self.clients.remove(&client) {
            self.to_spill.remove(&Account::Client(client));
            self.limits_changed(entry.barred);
        }
    }

    pub(crate) fn payer(&self, client: ClientId) -> Payer {
        match self.clients.get(&client) {
            Some(Client { user, .. }) => Payer::Client { client, user: *user },
            None if client == ClientId::STORE => Payer::Nobody,
            None => Payer::Unknown,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.number() == 0
    }

    fn number(&self) -> usize {
        self.users.len() + self.prefixes.len() + usize::from(self.each_client.is_some())
    }

    /// Returns the accounts that a quota of `subject` limits.
    pub(crate) fn accounts(&self, subject: &QuotaSubject) -> Vec<Account> {
        match subject {
            QuotaSubject::User(user) => vec![Account::User(*user)],
            QuotaSubject::Prefix(prefix) => vec![Account::Prefix(prefix.clone())],
            QuotaSubject::EachClient => self.clients.keys().copied().map(Account::Client).collect(),
        }
    }

    /// Sets a quota. `balances` has every account of `subject`.
    pub(crate) fn set(
        &mut self,
        subject: QuotaSubject,
        limits: QuotaLimits,
        balances: BTreeMap<Account, Balance>,
    ) -> Result<Quota> {
        if limits == QuotaLimits::default() {
            return Err(Error::invalid_request("a quota needs a limit of memory, disk or objects"));
        }
        if self.number() >= MAX_QUOTAS && self.find(&subject).is_none() {
            return Err(Error::limit_exceeded("quotas of a store", MAX_QUOTAS as u64));
        }
        if subject == QuotaSubject::EachClient {
            self.each_client = Some(limits);
        }
        let mut most = QuotaUse::default();
        for (account, (used, idle)) in balances {
            most = most.max(used);
            self.replace(&account, Some(Entry { limits, used, idle, ..Entry::default() }));
        }
        Ok(Quota { subject, limits, used: most })
    }

    pub(crate) fn remove(&mut self, subject: QuotaSubject) -> Result<Quota> {
        let Some(quota) = self.find(&subject) else {
            return Err(Error::InvalidRequest {
                reason: format!("there is no quota of {subject}").into(),
            });
        };
        for account in self.accounts(&subject) {
            self.replace(&account, None);
        }
        if subject == QuotaSubject::EachClient {
            self.each_client = None;
        }
        Ok(quota)
    }

    fn replace(&mut self, account: &Account, entry: Option<Entry>) {
        fn put<K: Ord + Clone>(
            map: &mut BTreeMap<K, Entry>,
            key: &K,
            entry: Option<Entry>,
        ) -> Option<Entry> {
            match entry {
                Some(entry) => map.insert(key.clone(), entry),
                None => map.remove(key),
            }
        }
        let earlier = match account {
            Account::User(user) => put(&mut self.users, user, entry),
            Account::Prefix(prefix) => put(&mut self.prefixes, prefix, entry),
            Account::Client(client) => self
                .clients
                .get_mut(client)
                .and_then(|client| std::mem::replace(&mut client.entry, entry)),
        };
        self.to_spill.remove(account);
        self.limits_changed(earlier.map(|earlier| earlier.barred).unwrap_or_default());
    }

    fn limits_changed(&mut self, barred: BTreeSet<(u64, CopyId)>) {
        self.has_new_room = true;
        self.readmitted.extend(barred.into_iter().map(|(_, copy)| copy));
    }

    fn find(&self, subject: &QuotaSubject) -> Option<Quota> {
        let (limits, used) = match subject {
            QuotaSubject::User(user) => {
                self.users.get(user).map(|entry| (entry.limits, entry.used))
            }
            QuotaSubject::Prefix(prefix) => {
                self.prefixes.get(prefix).map(|entry| (entry.limits, entry.used))
            }
            QuotaSubject::EachClient => self.each_client.map(|limits| {
                let entries = self.clients.values().filter_map(|client| client.entry.as_ref());
                (limits, entries.map(|entry| entry.used).fold(QuotaUse::default(), QuotaUse::max))
            }),
        }?;
        Some(Quota { subject: subject.clone(), limits, used })
    }

    pub(crate) fn subjects(&self) -> impl Iterator<Item = QuotaSubject> {
        let users = self.users.keys().copied().map(QuotaSubject::User);
        let each_client = self.each_client.map(|_| QuotaSubject::EachClient);
        let prefixes = self.prefixes.keys().cloned().map(QuotaSubject::Prefix);
        users.chain(each_client).chain(prefixes)
    }

    pub(crate) fn list(&self) -> impl Iterator<Item = Quota> {
        self.subjects().filter_map(|subject| self.find(&subject))
    }

    pub(crate) fn add(&mut self, charge: Charge<'_>) {
        let added = charge.used;
        self.change(charge, |entry| entry.used.add(added));
    }

    pub(crate) fn subtract(&mut self, charge: Charge<'_>) {
        let (gone, retries) = (charge.used, self.retries);
        let mut is_awaited = false;
        let is_charged = self.change(charge, |entry| {
            entry.used.subtract(gone);
            entry.has_new_disk |= gone.disk_bytes > 0 && !entry.barred.is_empty();
            is_awaited |= entry.awaited_in == Some(retries);
        });
        self.has_new_room |= is_awaited;
        self.has_new_disk |= is_charged && gone.disk_bytes > 0;
    }

    /// Of several exceeded quotas, prefers to report one that no wait can end, then one that no
    /// spilling can end.
    pub(crate) fn check(&self, charge: Charge<'_>) -> Result<(), QuotaExcess> {
        if self.is_empty() || charge.payer == Payer::Nobody {
            return Ok(());
        }
        let mut excess = None;
        if let Payer::Client { client, user } = charge.payer {
            if let Some(entry) = self.users.get(&user) {
                entry.check(charge.used, || QuotaSubject::User(user), &mut excess);
            }
            if let Some(Client { entry: Some(entry), .. }) = self.clients.get(&client) {
                entry.check(charge.used, || QuotaSubject::EachClient, &mut excess);
            }
        }
        let mut rest = charge.id.as_bytes();
        while let Some((prefix, entry)) = longest_prefix(&self.prefixes, rest) {
            entry.check(charge.used, || QuotaSubject::Prefix(prefix.clone()), &mut excess);
            rest = &rest[..prefix.as_bytes().len() - 1];
        }
        excess.map_or(Ok(()), Err)
    }

    pub(crate) fn reserve(&mut self, charge: Charge<'_>) {
        self.add(charge);
        self.reserved.insert(charge.id.clone(), (charge.payer, charge.used));
    }

    pub(crate) fn end_reservation(&mut self, id: &ObjectId) -> Payer {
        let Some((payer, used)) = self.reserved.remove(id) else { return Payer::Nobody };
        self.subtract(Charge { payer, id, used });
        payer
    }

    /// Ends a reservation, which a copy takes over, so no quota is freed.
    pub(crate) fn take_reservation(&mut self, id: &ObjectId) -> Payer {
        let has_new_room = self.has_new_room;
        let payer = self.end_reservation(id);
        self.has_new_room = has_new_room;
        payer
    }

    pub(crate) fn reserved(&self) -> impl Iterator<Item = Charge<'_>> {
        self.reserved.iter().map(|(id, (payer, used))| Charge { payer: *payer, id, used: *used })
    }

    pub(crate) fn wait(&mut self, waiter: SpaceWaiter) {
        self.waiters.push(waiter);
    }

    /// Notes the quotas that a put exceeds, before it waits.
    pub(crate) fn note_excess(&mut self, put: Charge<'_>) {
        let (needed, retries) = (put.used, self.retries);
        self.change(put, |entry| {
            if entry.is_exceeded(needed) {
                entry.awaited_in = Some(retries);
            }
        });
    }

    pub(crate) fn is_waiting(&self, waiter: &SpaceWaiter) -> bool {
        self.waiters.contains(waiter)
    }

    pub(crate) fn stop_waiting(&mut self, waiter: &SpaceWaiter) {
        // The other waiters note again how much they lack.
        self.has_new_room |= self.waiters.remove(waiter);
    }

    pub(crate) fn take_waiters(&mut self) -> Option<Vec<SpaceWaiter>> {
        let has_new_room = std::mem::take(&mut self.has_new_room);
        if has_new_room {
            self.to_spill.clear();
        }
        if !has_new_room || self.waiters.is_empty() {
            return None;
        }
        self.retries += 1;
        Some(self.waiters.take().collect())
    }

    pub(crate) fn remove_idle(&mut self, charge: Charge<'_>, copy: CopyId) {
        self.change(charge, |entry| {
            entry.idle.remove(copy);
            entry.barred.remove(&(charge.used.memory_bytes, copy));
        });
    }

    pub(crate) fn touch_idle(&mut self, charge: Charge<'_>, copy: CopyId) {
        self.change(charge, |entry| entry.idle.touch(copy));
    }

    pub(crate) fn balance(&self, account: &Account) -> Option<(QuotaUse, &IdleCopies)> {
        self.entry(account).map(|entry| (entry.used, &entry.idle))
    }

    fn entry(&self, account: &Account) -> Option<&Entry> {
        match account {
            Account::User(user) => self.users.get(user),
            Account::Client(client) => self.clients.get(client)?.entry.as_ref(),
            Account::Prefix(prefix) => self.prefixes.get(prefix),
        }
    }

    fn entry_mut(&mut self, account: &Account) -> Option<&mut Entry> {
        match account {
            Account::User(user) => self.users.get_mut(user),
            Account::Client(client) => self.clients.get_mut(client)?.entry.as_mut(),
            Account::Prefix(prefix) => self.prefixes.get_mut(prefix),
        }
    }

    fn accounts_of(&self, charge: Charge<'_>) -> Vec<Account> {
        let mut accounts = Vec::new();
        if let Payer::Client { client, user } = charge.payer {
            accounts.extend([Account::User(user), Account::Client(client)]);
        }
        let mut rest = charge.id.as_bytes();
        while let Some((prefix, _)) = longest_prefix(&self.prefixes, rest) {
            accounts.push(Account::Prefix(prefix.clone()));
            rest = &rest[..prefix.as_bytes().len() - 1];
        }
        accounts
    }

    /// Returns `true` if any quota counts the charge.
    fn change(&mut self, charge: Charge<'_>, mut change: impl FnMut(&mut Entry)) -> bool {
        if self.is_empty() || charge.payer == Payer::Nobody {
            return false;
        }
        let mut is_charged = false;
        if let Payer::Client { client, user } = charge.payer {
            let of_client = self.clients.get_mut(&client).and_then(|client| client.entry.as_mut());
            for entry in self.users.get_mut(&user).into_iter().chain(of_client) {
                change(entry);
                is_charged = true;
            }
        }
        let mut rest = charge.id.as_bytes();
        while let Some(length) =
            longest_prefix(&self.prefixes, rest).map(|(prefix, _)| prefix.as_bytes().len())
        {
            if let Some(entry) = self.prefixes.get_mut(&rest[..length]) {
                change(entry);
            }
            is_charged = true;
            rest = &rest[..length - 1];
        }
        is_charged
    }
}

impl Entry {
    fn lacking_bytes(&self, needed_bytes: u64) -> u64 {
        let limit = self.limits.memory_bytes.unwrap_or(u64::MAX);
        self.used.memory_bytes.saturating_add(needed_bytes).saturating_sub(limit)
    }

    fn is_exceeded(&self, needed: QuotaUse) -> bool {
        let mut excess = None;
        self.check(needed, || QuotaSubject::EachClient, &mut excess);
        excess.is_some()
    }

    fn disk_room(&self) -> u64 {
        self.limits.disk_bytes.map_or(u64::MAX, |limit| limit.saturating_sub(self.used.disk_bytes))
    }

    /// Memory that idle copies could free.
    fn movable_bytes(&self) -> u64 {
        self.idle.clean_bytes() + self.idle.dirty_bytes().min(self.disk_room())
    }

    /// Notes that the charge exceeds this quota. Keeps an earlier excess, unless only the new one
    /// is final (the object alone exceeds the limit), or is the first of objects.
    fn check(
        &self,
        needed: QuotaUse,
        subject: impl Fn() -> QuotaSubject,
        excess: &mut Option<QuotaExcess>,
    ) {
        let (limits, used) = (self.limits, self.used);
        let both = [
            (QuotaResource::Memory, needed.memory_bytes, used.memory_bytes, limits.memory_bytes),
            (QuotaResource::Objects, needed.objects, used.objects, limits.objects),
        ];
        for (resource, needed, used, limit) in both {
            if let Some(limit) = limit
                && used.saturating_add(needed) > limit
                && excess.as_ref().is_none_or(|known| {
                    let is_graver = needed > limit
                        || (resource, known.resource)
                            == (QuotaResource::Objects, QuotaResource::Memory);
                    is_graver && !known.is_final()
                })
            {
                *excess = Some(QuotaExcess { subject: subject(), resource, needed, used, limit });
            }
        }
    }
}

/// Returns the longest of `prefixes` that begins `id`.
fn longest_prefix<'a>(
    prefixes: &'a BTreeMap<ObjectId, Entry>,
    id: &[u8],
) -> Option<(&'a ObjectId, &'a Entry)> {
    let mut rest = id;
    while !rest.is_empty() {
        let up_to = (Bound::Unbounded, Bound::Included(rest));
        let (prefix, entry) = prefixes.range::<[u8], _>(up_to).next_back()?;
        let shared =
            prefix.as_bytes().iter().zip(rest).take_while(|(ours, theirs)| ours == theirs).count();
        if shared == prefix.as_bytes().len() {
            return Some((prefix, entry));
        }
        rest = &rest[..shared];
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId::new(name).unwrap()
    }

    fn prefix(name: &str) -> QuotaSubject {
        QuotaSubject::Prefix(id(name))
    }

    const fn limits(memory_bytes: Option<u64>, objects: Option<u64>) -> QuotaLimits {
        QuotaLimits { memory_bytes, disk_bytes: None, objects }
    }

    const fn paid_by(number: u32) -> Payer {
        Payer::Client { client: ClientId(number as u64), user: number % 10 }
    }

    fn set(quotas: &mut Quotas, subject: QuotaSubject, limits: QuotaLimits) -> Result<Quota> {
        let accounts = quotas.accounts(&subject).into_iter();
        let balances = accounts.map(|account| (account, Balance::default())).collect();
        quotas.set(subject, limits, balances)
    }

    const fn one(memory_bytes: u64) -> QuotaUse {
        QuotaUse { memory_bytes, disk_bytes: 0, objects: 1 }
    }

    fn charge(payer: Payer, id: &ObjectId, memory_bytes: u64) -> Charge<'_> {
        Charge { payer, id, used: one(memory_bytes) }
    }

    #[test]
    fn all_quotas_of_an_object_count() {
        let mut quotas = Quotas::default();
        set(&mut quotas, QuotaSubject::User(7), limits(Some(1000), None)).unwrap();
        for name in ["a", "a/", "a/b/", "a0", "b"] {
            set(&mut quotas, prefix(name), limits(None, Some(2))).unwrap();
        }
        quotas.add(charge(paid_by(7), &id("a/b/c"), 100));
        quotas.add(charge(paid_by(8), &id("a/x"), 50));
        quotas.add(charge(Payer::Unknown, &id("a"), 1));
        quotas.add(charge(Payer::Nobody, &id("b"), 1));
        let used: Vec<_> =
            quotas.list().map(|quota| (quota.subject.to_string(), quota.used)).collect();
        let expected = [
            ("user 7", 100, 1),
            ("prefix a", 151, 3),
            ("prefix a/", 150, 2),
            ("prefix a/b/", 100, 1),
            ("prefix a0", 0, 0),
            ("prefix b", 0, 0),
        ];
        let expected = expected.map(|(subject, memory_bytes, objects)| {
            (subject.to_owned(), QuotaUse { memory_bytes, disk_bytes: 0, objects })
        });
        assert_eq!(used, expected);
        let excess = quotas.check(charge(paid_by(7), &id("a/b/d"), 1)).unwrap_err();
        assert_eq!((excess.subject, excess.used, excess.limit), (prefix("a/"), 2, 2));
        let excess = quotas.check(charge(paid_by(7), &id("c"), 901)).unwrap_err();
        assert_eq!(
            excess.to_string(),
            "the quota of user 7 is exceeded: 100 B of 1000 B of memory used, 901 B more needed"
        );
        assert!(!excess.is_final());
        assert!(quotas.check(charge(paid_by(7), &id("c"), 1001)).unwrap_err().is_final());
        assert_eq!(quotas.check(charge(paid_by(7), &id("c"), 900)), Ok(()));
        assert_eq!(quotas.check(charge(Payer::Nobody, &id("a"), 9000)), Ok(()));
        set(&mut quotas, prefix("b"), limits(None, Some(0))).unwrap();
        let excess = quotas.check(charge(paid_by(7), &id("b/x"), 901)).unwrap_err();
        assert_eq!(excess.subject, prefix("b"), "room in the quota of the user would not help");
        assert!(excess.is_final());
    }

    #[test]
    fn the_number_of_quotas_is_limited_and_changes_are_checked() {
        let mut quotas = Quotas::default();
        let limits = limits(None, Some(0));
        for user in 0..u32::try_from(MAX_QUOTAS).unwrap() {
            set(&mut quotas, QuotaSubject::User(user), limits).unwrap();
        }
        let error = set(&mut quotas, prefix("x"), limits).unwrap_err();
        assert_eq!(error.to_string(), "quotas of a store are limited to 1024");
        set(&mut quotas, QuotaSubject::User(3), limits).unwrap();
        quotas.remove(QuotaSubject::User(3)).unwrap();
        let error = quotas.remove(QuotaSubject::User(3)).unwrap_err();
        assert_eq!(error.to_string(), "invalid request: there is no quota of user 3");
        set(&mut quotas, prefix("x"), limits).unwrap();
        let error = set(&mut quotas, prefix("x"), QuotaLimits::default()).unwrap_err();
        assert!(matches!(error, Error::InvalidRequest { .. }), "{error}");
    }

    #[test]
    fn each_client_has_the_quota_to_itself_until_it_disconnects() {
        let mut quotas = Quotas::default();
        quotas.client_connected(ClientId(1), 1);
        quotas.client_connected(ClientId(11), 1);
        set(&mut quotas, QuotaSubject::EachClient, limits(Some(100), None)).unwrap();
        quotas.client_connected(ClientId(21), 1);
        let object = id("x");
        quotas.add(charge(paid_by(1), &object, 60));
        quotas.add(charge(paid_by(21), &object, 30));
        assert_eq!(quotas.find(&QuotaSubject::EachClient).unwrap().used, one(60));
        let excess = quotas.check(charge(paid_by(1), &object, 50)).unwrap_err();
        assert_eq!(
            excess.to_string(),
            "the quota of a client is exceeded: 60 B of 100 B of memory used, 50 B more needed"
        );
        assert_eq!(quotas.check(charge(paid_by(11), &object, 100)), Ok(()));
        assert_eq!(quotas.check(charge(paid_by(21), &object, 70)), Ok(()));
        quotas.client_gone(ClientId(1));
        quotas.subtract(charge(paid_by(1), &object, 60));
        assert_eq!(quotas.find(&QuotaSubject::EachClient).unwrap().used, one(30));
        quotas.remove(QuotaSubject::EachClient).unwrap();
        assert!(quotas.is_empty());
        assert_eq!(quotas.check(charge(paid_by(21), &object, 1000)), Ok(()));
    }

    #[test]
    fn waiters_try_again_when_a_quota_has_room() {
        let mut quotas = Quotas::default();
        let waiter = SpaceWaiter::Target(id("t"));
        let charged = id("x");
        set(&mut quotas, QuotaSubject::User(1), limits(None, Some(1))).unwrap();
        assert_eq!(quotas.take_waiters(), None);
        quotas.add(charge(paid_by(1), &charged, 1));
        quotas.add(charge(paid_by(2), &charged, 1));
        quotas.note_excess(charge(paid_by(1), &id("y"), 1));
        quotas.wait(waiter.clone());
        quotas.subtract(charge(paid_by(2), &charged, 1));
        assert_eq!(quotas.take_waiters(), None);
        quotas.subtract(charge(paid_by(1), &charged, 1));
        assert_eq!(quotas.take_waiters(), Some(vec![waiter]));
        assert_eq!(quotas.take_waiters(), None);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Add(u32, String, u64),
        Remove(prop::sample::Index),
        Reserve(u32, String, u64),
        EndReservation(String),
        Set(QuotaSubject),
        RemoveQuota(QuotaSubject),
        /// A client of the user ends, and another one begins.
        Reconnect(u32),
    }

    fn name() -> impl Strategy<Value = String> {
        "[ab]{1,4}"
    }

    fn step() -> impl Strategy<Value = Step> {
        let subject = || {
            prop_oneof![
                (0_u32..3).prop_map(QuotaSubject::User),
                Just(QuotaSubject::EachClient),
                name().prop_map(|name| prefix(&name)),
            ]
        };
        let charge = || (0_u32..4, name(), 0_u64..1000);
        prop_oneof![
            4 => charge().prop_map(|(user, name, bytes)| Step::Add(user, name, bytes)),
            3 => any::<prop::sample::Index>().prop_map(Step::Remove),
            1 => charge().prop_map(|(user, name, bytes)| Step::Reserve(user, name, bytes)),
            1 => name().prop_map(Step::EndReservation),
            2 => subject().prop_map(Step::Set),
            1 => subject().prop_map(Step::RemoveQuota),
            1 => (1_u32..3).prop_map(Step::Reconnect),
        ]
    }

    fn balances(
        quotas: &Quotas,
        subject: &QuotaSubject,
        objects: &[(Payer, ObjectId, u64)],
    ) -> BTreeMap<Account, Balance> {
        let use_of = |account: &Account| {
            let objects = objects.iter().map(|(payer, id, bytes)| charge(*payer, id, *bytes));
            let charges = objects.chain(quotas.reserved()).filter(|charge| charge.is_of(account));
            charges.fold(QuotaUse::default(), |mut sum, charge| {
                sum.add(charge.used);
                sum
            })
        };
        let accounts = quotas.accounts(subject).into_iter();
        accounts
            .map(|account| (account.clone(), (use_of(&account), IdleCopies::default())))
            .collect()
    }

    proptest! {
        #[test]
        fn the_use_is_the_sum_over_charged_objects(steps in prop::collection::vec(step(), 1..60)) {
            let mut quotas = Quotas::default();
            let mut objects: Vec<(Payer, ObjectId, u64)> = Vec::new();
            let mut clients = BTreeMap::from([(1, ClientId(1)), (2, ClientId(2))]);
            clients.iter().for_each(|(user, client)| quotas.client_connected(*client, *user));
            for (number, step) in steps.into_iter().enumerate() {
                let payer = |user| match user {
                    0 => Payer::Nobody,
                    1 => Payer::Unknown,
                    _ => Payer::Client { client: clients[&(user - 1)], user: user - 1 },
                };
                match step {
                    Step::Add(user, name, bytes) => {
                        objects.push((payer(user), id(&name), bytes));
                        quotas.add(charge(payer(user), &id(&name), bytes));
                    }
                    Step::Remove(which) if !objects.is_empty() => {
                        let (payer, id, bytes) = objects.swap_remove(which.index(objects.len()));
                        quotas.subtract(charge(payer, &id, bytes));
                    }
                    Step::Reserve(user, name, bytes) => {
                        quotas.end_reservation(&id(&name));
                        quotas.reserve(charge(payer(user), &id(&name), bytes));
                    }
                    Step::EndReservation(name) => {
                        quotas.end_reservation(&id(&name));
                    }
                    Step::Set(subject) => {
                        let balances = balances(&quotas, &subject, &objects);
                        quotas.set(subject, limits(Some(1), None), balances).unwrap();
                    }
                    Step::RemoveQuota(subject) => drop(quotas.remove(subject)),
                    Step::Reconnect(user) => {
                        quotas.client_gone(clients[&user]);
                        clients.insert(user, ClientId(number as u64 + 10));
                        quotas.client_connected(clients[&user], user);
                    }
                    Step::Remove(_) => {}
                }
                let quotas = &quotas;
                for subject in quotas.subjects() {
                    for (account, (used, _)) in balances(quotas, &subject, &objects) {
                        prop_assert_eq!(quotas.balance(&account).map(|(used, _)| used), Some(used), "{}", subject);
                    }
                }
            }
        }
    }
}
