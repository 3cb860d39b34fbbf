//! Calls that differ from the asynchronous client's only in that they block.

use std::time::Duration;

use hoplite_core::ObjectId;
use hoplite_core::placement::ShardChange;
use hoplite_core::quota::{Quota, QuotaLimits, QuotaSubject};
use hoplite_core::reduce::ReduceOp;
use hoplite_core::shard::Locations;

use super::Client;
use crate::batch::{NewObject, Results};
use crate::begun::REPORT_TIMEOUT;
use crate::client::Page;
use crate::delete::{DeleteOptions, Deletion};
use crate::error::Result;
use crate::options::{AllreduceOptions, GetOptions, PutOptions, ReduceOptions};
use crate::report::{Description, NodeStatus};
use crate::shards::DirectoryShards;
use crate::timeout::default_timeout;
use crate::view::ObjectView;

macro_rules! calls {
    ($($summary:literal $name:ident($($argument:ident: $type:ty),*) -> $answer:ty, within $timeout:expr;)*) => {
        impl Client {
            $(
                #[doc = concat!($summary, "; see [`crate::Client::", stringify!($name), "`].\n\n# Errors\nThe same errors.")]
                pub fn $name(&self, $($argument: $type),*) -> Result<$answer> {
                    let (piped, client) = self.shared.connected($timeout)?;
                    piped.pump.run(client.$name($($argument),*))
                }
            )*
        }
    };
}

calls! {
    "Lists the quotas of the store"
    quotas() -> Vec<Quota>, within REPORT_TIMEOUT;

    "Sets or removes a quota"
    set_quota(subject: QuotaSubject, limits: Option<QuotaLimits>) -> Quota, within REPORT_TIMEOUT;

    "Describes the directory's shards"
    shards() -> DirectoryShards, within REPORT_TIMEOUT;

    "Adds a shard to the directory, or removes one"
    change_shards(change: ShardChange, force: bool) -> DirectoryShards, within REPORT_TIMEOUT;

    "Puts plain bytes"
    put(id: impl AsRef<[u8]>, bytes: &[u8]) -> (), within default_timeout();

    "Puts an object"
    put_with(id: impl AsRef<[u8]>, bytes: &[u8], options: PutOptions) -> (), within options.timeout;

    "Gets a zero-copy view"
    get(id: impl AsRef<[u8]>, timeout: Duration) -> ObjectView, within timeout;

    "Gets a zero-copy view, as the options say"
    get_with(id: impl AsRef<[u8]>, options: GetOptions) -> ObjectView, within options.timeout;

    "Copies an object into `out` while it arrives"
    get_into(id: impl AsRef<[u8]>, out: &mut [u8], timeout: Duration) -> usize, within timeout;

    "Copies an object into a new vector while it arrives"
    get_vec(id: impl AsRef<[u8]>, timeout: Duration) -> Vec<u8>, within timeout;

    "Puts many objects of plain bytes"
    put_many(
        objects: impl IntoIterator<Item = (impl AsRef<[u8]>, impl AsRef<[u8]>)>, options: PutOptions
    ) -> Results<()>, within options.timeout;

    "Puts many objects"
    put_many_with(objects: Vec<NewObject<'_>>, options: PutOptions) -> Results<()>, within options.timeout;

    "Removes every copy of many objects"
    delete_many(ids: impl IntoIterator<Item: AsRef<[u8]>>, timeout: Duration) -> Results<bool>, within timeout;

    "Removes every copy of each object"
    delete(ids: impl IntoIterator<Item: AsRef<[u8]>>, timeout: Duration) -> usize, within timeout;

    "Removes every copy of each object, and tells which nodes did not confirm it"
    delete_with(ids: impl IntoIterator<Item: AsRef<[u8]>>, options: DeleteOptions) -> Deletion, within options.timeout;

    "Waits for some of several objects"
    wait(ids: impl IntoIterator<Item: AsRef<[u8]>>, count: usize, timeout: Duration) -> Vec<usize>, within timeout;

    "Reduces all of several arrays into one"
    reduce(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, op: ReduceOp, timeout: Duration
    ) -> Vec<ObjectId>, within timeout;

    "Reduces several arrays into one"
    reduce_with(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, options: ReduceOptions
    ) -> Vec<ObjectId>, within options.timeout;

    "Gets views of several objects at once"
    gather(ids: impl IntoIterator<Item: AsRef<[u8]>>, timeout: Duration) -> Vec<ObjectView>, within timeout;

    "Copies several objects, one after the other, into `out` while they arrive"
    gather_into(
        ids: impl IntoIterator<Item: AsRef<[u8]>>, out: &mut [u8], timeout: Duration
    ) -> Vec<usize>, within timeout;

    "Puts one object and gets views of all"
    allgather(
        ids: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize, bytes: &[u8], options: PutOptions
    ) -> Vec<ObjectView>, within options.timeout;

    "Reduces the objects of all participants, and returns the result to each"
    allreduce(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize,
        options: AllreduceOptions
    ) -> Vec<u8>, within options.timeout;

    "Reduces the objects of all participants into the front of each one's `out`"
    allreduce_into(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize, out: &mut [u8],
        options: AllreduceOptions
    ) -> usize, within options.timeout;

    "Sends each participant its part, and returns views of the parts for this one"
    all_to_all(
        name: impl AsRef<[u8]>, parts: &[impl AsRef<[u8]>], rank: usize, options: PutOptions
    ) -> Vec<ObjectView>, within options.timeout;

    "Sends each participant its part, and copies the parts for this one into `out`"
    all_to_all_into(
        name: impl AsRef<[u8]>, parts: &[impl AsRef<[u8]>], rank: usize, out: &mut [u8], options: PutOptions
    ) -> Vec<usize>, within options.timeout;

    "Waits until all participants have called this"
    barrier(name: impl AsRef<[u8]>, participants: usize, rank: usize, timeout: Duration) -> (), within timeout;

    "Reduces the objects of all participants, and returns one part of the result to each"
    reduce_scatter(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize,
        options: AllreduceOptions
    ) -> Vec<u8>, within options.timeout;

    "Reduces the objects of all participants, and copies one part of the result into each one's \
     `out`"
    reduce_scatter_into(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize, out: &mut [u8],
        options: AllreduceOptions
    ) -> usize, within options.timeout;

    "Copies the objects of all participants into each one's `out`"
    allgather_into(
        target: impl AsRef<[u8]>, sources: impl IntoIterator<Item: AsRef<[u8]>>, rank: usize, out: &mut [u8],
        timeout: Duration
    ) -> usize, within timeout;

    "Returns `true` if all bytes of an object are somewhere in the cluster"
    contains(id: impl AsRef<[u8]>) -> bool, within REPORT_TIMEOUT;

    "Waits until an object has a location"
    locate(id: impl AsRef<[u8]>, timeout: Duration) -> Locations, within timeout;

    "Lists objects"
    list(prefix: impl AsRef<[u8]>, after: impl AsRef<[u8]>, limit: usize) -> Page, within REPORT_TIMEOUT;

    "Describes one object"
    describe(id: impl AsRef<[u8]>) -> Description, within REPORT_TIMEOUT;

    "The counters of this node's store"
    status() -> NodeStatus, within REPORT_TIMEOUT;
}
