//! What a store's protocol provides to its connections.

use std::{future::Future, time::Duration};

use super::Address;
use crate::store::remote::RemoteError;

/// One server of a store: where it is, and how to speak to it.
pub(in crate::store) trait Protocol: Send + Sync + 'static {
    /// The name of the store, for logs.
    const STORE: &'static str;

    /// One command, encoded.
    type Command: Send + 'static;

    /// The replies to the commands of one call.
    type Reply: Send + 'static;

    /// An open connection.
    type Connection: Connection<Command = Self::Command, Reply = Self::Reply>;

    /// Returns the server's name for logs.
    fn name(&self) -> String;

    /// Returns the server's name for logs, after it was found at `address`.
    fn name_at(&self, address: &Address) -> String;

    /// Returns the longest time for one command, and for making one connection.
    fn timeout(&self) -> Duration;

    /// Finds the server and connects to it. The error is for people, and names the address.
    fn connect(&self) -> impl Future<Output = Result<(Address, Self::Connection), String>> + Send;

    /// Waits until the server is no longer at `address`, and returns its new address.
    fn moved(&self, address: &Address) -> impl Future<Output = Address> + Send;
}

/// An open connection, which sends pipelines. Dropping it closes it.
pub(in crate::store) trait Connection: Send + 'static {
    /// One command, encoded.
    type Command;

    /// The replies to the commands of one call.
    type Reply;

    /// Sends the commands of `calls`, in this order, and waits for the replies: one for each call. They are sent even
    /// if the future is dropped.
    fn exchange(
        &self,
        calls: Vec<Vec<Self::Command>>,
    ) -> impl Future<Output = Result<Vec<Self::Reply>, RemoteError>> + Send + 'static;

    /// Waits until the connection has ended.
    fn ended(&mut self) -> impl Future<Output = ()> + Send;

    /// Closes the connection after the replies in flight have arrived, or after `within`.
    fn retire(self, within: Duration);
}
