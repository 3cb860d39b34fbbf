use hoplite_core::TraceContext;
use hoplite_core::error::Result;
use hoplite_core::shard::ToShard;
use hoplite_proto::directory::decode_store_batch;
use hoplite_proto::trace;
use hoplite_proto::v1::StoreMessages;

pub(crate) type TracedMessage = (ToShard, Option<TraceContext>);

pub(crate) fn decode(batch: StoreMessages) -> Result<Vec<TracedMessage>> {
    let traces: Vec<_> =
        batch.messages.iter().map(|message| trace::decode(&message.trace)).collect();
    Ok(decode_store_batch(batch)?.into_iter().zip(traces).collect())
}
