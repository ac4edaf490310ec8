//! A store of several nodes, each a simulated store of its own.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use futures_util::future::join_all;
use weir_coordinate::simulated::SimulatedRemote;
use weir_limit::Timestamp;
use weir_store::remote::{Command, Heartbeat, Members, Remote, RemoteError, Replies, StoreNode, Target};

/// One instance's handle of all nodes.
pub(super) struct Nodes(pub(super) Vec<SimulatedRemote>);

/// Returns the node that counts `path`.
pub(super) fn node_of(path: &str, nodes: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    usize::try_from(hasher.finish() % nodes as u64).expect("few nodes")
}

impl Remote for Nodes {
    async fn call(&self, commands: Vec<Command>) -> Result<Replies, RemoteError> {
        let nodes: Vec<usize> =
            commands.iter().map(|command| node_of(&command.target.path, self.0.len())).collect();
        let calls = self.0.iter().enumerate().map(async |(node, remote)| {
            let own = commands.iter().zip(&nodes).filter(|(_, of)| **of == node);
            let own: Vec<Command> = own.map(|(command, _)| command.clone()).collect();
            if own.is_empty() { None } else { Some(remote.call(own).await) }
        });
        let outcomes = join_all(calls).await;
        let mut now = Timestamp::default();
        let mut replies: Vec<_> = outcomes
            .into_iter()
            .map(|outcome| match outcome {
                Some(Ok(replies)) => {
                    now = now.max(replies.now);
                    Ok(replies.replies.into_iter())
                }
                Some(Err(error)) => Err(error),
                None => Ok(Vec::new().into_iter()),
            })
            .collect();
        // no node replied
        if now == Timestamp::default()
            && let Some(Err(error)) = replies.iter().find(|reply| reply.is_err())
        {
            return Err(error.clone());
        }
        let in_order = nodes.iter().map(|node| match &mut replies[*node] {
            Ok(replies) => replies.next().expect("a reply for each command"),
            Err(error) => Err(error.clone()),
        });
        let replies = in_order.collect();
        Ok(Replies { now, replies })
    }

    async fn heartbeat(&self, heartbeat: Heartbeat<'_>) -> Result<Members, RemoteError> {
        self.0[0].heartbeat(heartbeat).await
    }

    fn node(&self, target: &Target, _at: Timestamp) -> StoreNode {
        StoreNode(node_of(&target.path, self.0.len()) as u64)
    }
}
