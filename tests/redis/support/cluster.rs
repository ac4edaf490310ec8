pub(crate) struct Cluster;
