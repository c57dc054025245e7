use hca_core::{CqPort, Device, RecvPort, SendPort};

struct Any;

impl Device for Any {}
impl SendPort for Any {}
impl RecvPort for Any {}
impl CqPort for Any {}

fn main() {}
