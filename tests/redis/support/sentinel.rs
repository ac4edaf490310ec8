pub(crate) struct Watched;
