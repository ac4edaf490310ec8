//! What a store's protocol provides to its connections.

use std::{future::Future, time::Duration};

use weir_net::Address;
use weir_store::remote::RemoteError;

/// Leaves open whether the command was carried out.
pub(crate) fn malformed_reply() -> RemoteError {
    RemoteError::Unreachable("its reply is malformed".into())
}

/// One server of a store: where it is, and how to speak to it.
pub(crate) trait RemoteProtocol: Send + Sync + 'static {
    const STORE: &'static str;

    type Command: Send + 'static;

    type Reply: Send + 'static;

    type Connection: Connection<Command = Self::Command, Reply = Self::Reply>;

    fn name(&self) -> String;

    /// Where it was found.
    fn name_at(&self, address: &Address) -> String {
        address.to_string()
    }

    /// For one command, and for making one connection.
    fn timeout(&self) -> Duration;

    /// The error is for people, and names the address.
    fn connect(&self) -> impl Future<Output = Result<(Address, Self::Connection), String>> + Send;

    /// Waits until the server is no longer at `address`, and returns its new address. Never ends if an address is
    /// fixed: a host name is resolved for each connection.
    fn moved(&self, _address: &Address) -> impl Future<Output = Address> + Send {
        std::future::pending()
    }
}

/// Dropping it closes the connection.
pub(crate) trait Connection: Send + 'static {
    type Command;

    type Reply;

    /// Calls keep their order, and get one reply each. They are sent even if the future is dropped.
    fn exchange(
        &self,
        calls: Vec<Vec<Self::Command>>,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, RemoteError>> + Send + 'static;

    fn ended(&mut self) -> impl Future<Output = ()> + Send;

    /// Closes the connection after the replies in flight have arrived, or after `within`.
    fn retire(self, within: Duration);
}
