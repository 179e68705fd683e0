//! How types of other crates stand in JSON.

use serde::{Deserialize, Serialize};

use crate::{ActorId, Side};

/// [`Side`] in words.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Side", rename_all = "lowercase")]
pub(crate) enum SideWord {
    /// `"host"`.
    Host,
    /// `"device"`.
    Device,
}

/// [`ActorId`] as its number.
#[derive(Serialize)]
#[serde(remote = "ActorId", transparent)]
pub(crate) struct ActorNumber(pub(crate) u16);
