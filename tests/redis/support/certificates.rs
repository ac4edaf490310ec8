pub(crate) struct Certificates;
