use std::pin::pin;

use hoplite_core::Operation;
use hoplite_core::Version;
use hoplite_core::node::{self, Response};
use hoplite_core::quota::{Quota, QuotaLimits, QuotaSubject};

use crate::begun::{REPORT_TIMEOUT, Repeat, Wait};
use crate::client::Client;
use crate::error::Result;

impl Client {
    /// Lists the quotas of the store with their use: by user, then of each client, then by prefix.
    pub async fn quotas(&self) -> Result<Vec<Quota>> {
        self.call_for_quotas(node::Request::ListQuotas).await
    }

    /// Sets all limits of a quota until the store ends. `None` removes the quota. Only root and
    /// the store's user may change quotas.
    ///
    /// Returns the new or removed quota. Existing objects stay, even above the limit.
    ///
    /// # Errors
    /// `PermissionDenied`; `LimitExceeded` for more than 1,024 quotas; `InvalidRequest` if `limits`
    /// has no limit, or if there is no quota to remove; `VersionMismatch` for
    /// [`QuotaSubject::EachClient`] at an older store.
    pub async fn set_quota(
        &self,
        subject: QuotaSubject,
        limits: Option<QuotaLimits>,
    ) -> Result<Quota> {
        let quotas = self.call_for_quotas(node::Request::SetQuota { subject, limits }).await?;
        quotas.into_iter().next().ok_or_else(|| self.connection().unexpected())
    }

    async fn call_for_quotas(&self, request: node::Request) -> Result<Vec<Quota>> {
        let call = self.begin_report().await?;
        let connection = &call.connection;
        if let node::Request::SetQuota { subject: QuotaSubject::EachClient, .. } = request {
            connection.version().require(Version::WITH_CLIENT_QUOTAS)?;
        }
        let list = pin!(async {
            match connection.call_node(request, Operation::Connect, REPORT_TIMEOUT).await? {
                Response::Quotas(quotas) => Ok(quotas),
                _ => Err(connection.unexpected()),
            }
        });
        call.run(Wait { operation: "quotas", id: None, needs: &[] }, Repeat::Harmless, list).await
    }
}
