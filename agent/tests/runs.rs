#[test]
fn p() {}
