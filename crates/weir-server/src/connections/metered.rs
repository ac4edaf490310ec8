//! Sockets that record what is read, and whether the client accepts what is sent.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::ConnectionAccount;

/// Records reads, and whether the client accepts what is sent. From a client that reads nothing, nothing is read.
#[derive(Debug)]
pub(crate) struct Metered<I> {
    io: I,
    account: Arc<ConnectionAccount>,
    /// Whether a read has to be repeated when the client reads again.
    is_paused: bool,
}

impl<I> Metered<I> {
    pub(crate) const fn new(io: I, account: Arc<ConnectionAccount>) -> Self {
        Self { io, account, is_paused: false }
    }

    fn record<T>(&mut self, outcome: Poll<io::Result<T>>, context: &Context<'_>) -> Poll<io::Result<T>> {
        if outcome.is_pending() {
            self.account.set_blocked();
        } else {
            self.account.set_writable();
            if std::mem::take(&mut self.is_paused) {
                context.waker().wake_by_ref();
            }
        }
        outcome
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Metered<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.account.must_pause() {
            // the write that is pending wakes the task
            self.is_paused = true;
            return Poll::Pending;
        }
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        self.account.add_read(into.filled().len() - before);
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Metered<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.record(outcome, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.record(outcome, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // TLS keeps what it has encrypted until the client reads
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.record(outcome, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
