//! Keys as openssl writes them: all forms of a key are the same key.

use super::*;

/// `openssl genrsa -traditional 2048`, made for this test.
const RSA: &str = "-----BEGIN RSA PRIVATE KEY-----
MIIEpAIBAAKCAQEAwkz97oJT10zza8JF+ltB03u2EfxtqIT5Vvqc76RUwvsBvmqd
H0imXey5f1/uzDKuPT6lmhYE9NPjBg3Xan6mBV1G/J6glfdpAg4fGSFwQaQxY6V6
FKeM1opL1UCxk/VNTE80eGlfumLQ83wRdR8kHLDeGH7CnS0e8+3QeJS2fCR3HAIo
9B3jaAxFDwzfVODfeAgmc/1Zl6Rme7t9yWZTP8WQOFkfC9MiXrUZB5XWnhag15Xk
o19hZrY64sGRCPOytyxoIQG3skIO8XOBDgsZwFUucZB9j7LXOQ/VzZcqkCu9J6U8
LlJJLjVTyD49xg4TA85CtqyQTMUQNn1949AdCwIDAQABAoIBAAqXcNYyE4jugGx0
3CSwGdAB8+RaGs4vZXoo0io8DoTMcwViwWrlpnADSf9YBufpsVbUVemm3qFL9Zms
YnxDKCCtu4Nk0EMsh/RdObPAf2KMpUaVzChZE9PUGRsoWiXDHvIUdTtFHztFTLeh
IUB9sJXBzHGQY2J3BbNtWMph7OqqZ8ixbrGySI0+cqsBsvvy/e+J7YiApaGr458R
a5eKzZlJvjBUfY5plTj1HXpOy45aH1X1DQBvXs46EPIoZyIpO5AwcQdkzqK2KT4y
Cz5/0ML/46GjzFzUZPQUnE2ecrrNut27wKaNjeTZMJ1inf7XhVEumyb7bOg07/kg
hTtajCkCgYEA9VwaY3G4pcMxGaXB1UFnThy8Q7+U5nawm2Mj4PuXQ8x0qRyti+ft
UZr+aaYphPlU3MXgm0fqMcvzhXNuG/kBm8oNhyQ0wMuB1tnIi0hxcbs3h1z+66Dr
bxYk1A3D65WCxfst/EA+D9YEqTmHCIApaA1gcsBTcRC+Jg6CGVTM4qkCgYEAyroM
uDUdBu5FMdP3YPONf0K6MtwYCg32Gexpasn7jNinCbbDH2swHZ2IAROncmqzYolH
Sy+BIrwgdiT0j3/r8lmlpyKTkFtRZwn/Dj17ChkP2VjBuXF3M1yZN4xkZrIb0mpe
yWKLkzYTHBhRtl5mNwpbA4zTTsU6dcc1KOBKBpMCgYEAyxxPi/rcC/ylbMHWz56w
0ezfvIWf0Zh3YmqTjO84rRtXh5cB40s/HcrcyMCQpk9wfMIhyOmjaU2YbeS8RdPA
DSMaR8ElGmRdO2pVpVd28ds1gIzvSkeQHgmKuzAZ+69s7k+cJbFYrutQOHYy3kqZ
/FT2fofPi0182ywvbqDQauECgYEArjWfRJTv8srCz4T1am0hRSEUXSxhxBInUDOm
i0wzTN/I+0IA/3jfCjQbccFv/ZTPvnd1upiCAlVkF+K9/qrRGZwMDEpcQIsYstEW
SyhuGUlcI0xwfWmSI6MJT4DnrpCT9AfQmIKEquanGVeUsIECmX3epHhaBbDbAedE
OXI0at0CgYA28A9gmLQeguCrpv2ELvznNtpvZFx2eTdqqEEObIBmcBepODT/dH0Y
613iSQQofzlZpwutFQKMjFz/9SdGepsfE/LEcft93n0LVp09raG+ZAJ2cMb2r1BP
aVXk7HJkLpWI/Zf3xR/DPi6mUAdGgQ5QF2RTkarAdAzWyhwOYRhkLw==
-----END RSA PRIVATE KEY-----
";

/// The key before, by `openssl pkcs8 -topk8 -nocrypt`.
const RSA_PKCS8: &str = "-----BEGIN PRIVATE KEY-----
MIIEvgIBADANBgkqhkiG9w0BAQEFAASCBKgwggSkAgEAAoIBAQDCTP3uglPXTPNr
wkX6W0HTe7YR/G2ohPlW+pzvpFTC+wG+ap0fSKZd7Ll/X+7MMq49PqWaFgT00+MG
DddqfqYFXUb8nqCV92kCDh8ZIXBBpDFjpXoUp4zWikvVQLGT9U1MTzR4aV+6YtDz
fBF1HyQcsN4YfsKdLR7z7dB4lLZ8JHccAij0HeNoDEUPDN9U4N94CCZz/VmXpGZ7
u33JZlM/xZA4WR8L0yJetRkHldaeFqDXleSjX2FmtjriwZEI87K3LGghAbeyQg7x
c4EOCxnAVS5xkH2Pstc5D9XNlyqQK70npTwuUkkuNVPIPj3GDhMDzkK2rJBMxRA2
fX3j0B0LAgMBAAECggEACpdw1jITiO6AbHTcJLAZ0AHz5Foazi9leijSKjwOhMxz
BWLBauWmcANJ/1gG5+mxVtRV6abeoUv1maxifEMoIK27g2TQQyyH9F05s8B/Yoyl
RpXMKFkT09QZGyhaJcMe8hR1O0UfO0VMt6EhQH2wlcHMcZBjYncFs21YymHs6qpn
yLFusbJIjT5yqwGy+/L974ntiICloavjnxFrl4rNmUm+MFR9jmmVOPUdek7Ljlof
VfUNAG9ezjoQ8ihnIik7kDBxB2TOorYpPjILPn/Qwv/joaPMXNRk9BScTZ5yus26
3bvApo2N5NkwnWKd/teFUS6bJvts6DTv+SCFO1qMKQKBgQD1XBpjcbilwzEZpcHV
QWdOHLxDv5TmdrCbYyPg+5dDzHSpHK2L5+1Rmv5ppimE+VTcxeCbR+oxy/OFc24b
+QGbyg2HJDTAy4HW2ciLSHFxuzeHXP7roOtvFiTUDcPrlYLF+y38QD4P1gSpOYcI
gCloDWBywFNxEL4mDoIZVMziqQKBgQDKugy4NR0G7kUx0/dg841/Qroy3BgKDfYZ
7GlqyfuM2KcJtsMfazAdnYgBE6dyarNiiUdLL4EivCB2JPSPf+vyWaWnIpOQW1Fn
Cf8OPXsKGQ/ZWMG5cXczXJk3jGRmshvSal7JYouTNhMcGFG2XmY3ClsDjNNOxTp1
xzUo4EoGkwKBgQDLHE+L+twL/KVswdbPnrDR7N+8hZ/RmHdiapOM7zitG1eHlwHj
Sz8dytzIwJCmT3B8wiHI6aNpTZht5LxF08ANIxpHwSUaZF07alWlV3bx2zWAjO9K
R5AeCYq7MBn7r2zuT5wlsViu61A4djLeSpn8VPZ+h8+LTXzbLC9uoNBq4QKBgQCu
NZ9ElO/yysLPhPVqbSFFIRRdLGHEEidQM6aLTDNM38j7QgD/eN8KNBtxwW/9lM++
d3W6mIICVWQX4r3+qtEZnAwMSlxAixiy0RZLKG4ZSVwjTHB9aZIjowlPgOeukJP0
B9CYgoSq5qcZV5SwgQKZfd6keFoFsNsB50Q5cjRq3QKBgDbwD2CYtB6C4Kum/YQu
/Oc22m9kXHZ5N2qoQQ5sgGZwF6k4NP90fRjrXeJJBCh/OVmnC60VAoyMXP/1J0Z6
mx8T8sRx+33efQtWnT2tob5kAnZwxvavUE9pVeTscmQulYj9l/fFH8M+LqZQB0aB
DlAXZFORqsB0DNbKHA5hGGQv
-----END PRIVATE KEY-----
";

/// Its public half.
const RSA_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAwkz97oJT10zza8JF+ltB
03u2EfxtqIT5Vvqc76RUwvsBvmqdH0imXey5f1/uzDKuPT6lmhYE9NPjBg3Xan6m
BV1G/J6glfdpAg4fGSFwQaQxY6V6FKeM1opL1UCxk/VNTE80eGlfumLQ83wRdR8k
HLDeGH7CnS0e8+3QeJS2fCR3HAIo9B3jaAxFDwzfVODfeAgmc/1Zl6Rme7t9yWZT
P8WQOFkfC9MiXrUZB5XWnhag15Xko19hZrY64sGRCPOytyxoIQG3skIO8XOBDgsZ
wFUucZB9j7LXOQ/VzZcqkCu9J6U8LlJJLjVTyD49xg4TA85CtqyQTMUQNn1949Ad
CwIDAQAB
-----END PUBLIC KEY-----
";

/// By `openssl dgst -sha256` of the public half in DER.
const RSA_ID: &str = "ZK3LMj13T_k8zqRrfa2xoglIDRiarFgUz7i4qsTOJxo";

/// `openssl ecparam -genkey -name prime256v1`, made for this test.
const EC: &str = "-----BEGIN EC PARAMETERS-----
BggqhkjOPQMBBw==
-----END EC PARAMETERS-----
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIKC84XlWWDsylU3VxDLtStJtxagsKeR+eSJxyL0q2GC5oAoGCCqGSM49
AwEHoUQDQgAEX6jZr+4o8tzIpPIcn0XvelScldlEGuG9NdAOa46t6P1tZbs9oLyv
qVxJvks5pZIYQtTwMqVbmXWVDHEinPMjNg==
-----END EC PRIVATE KEY-----
";

/// Its public half.
const EC_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEX6jZr+4o8tzIpPIcn0XvelScldlE
GuG9NdAOa46t6P1tZbs9oLyvqVxJvks5pZIYQtTwMqVbmXWVDHEinPMjNg==
-----END PUBLIC KEY-----
";
const EC_ID: &str = "C-lp5KCC8tbEjN8yfihU-x6JZ9-ioRs75IOQnMKOnZM";

fn file(dir: &tempfile::TempDir, text: &str) -> std::path::PathBuf {
    let path = dir.path().join("key.pem");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn every_form_of_a_key_is_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    for (form, algorithm, id) in [
        (RSA, Algorithm::Rs256, RSA_ID),
        (RSA_PKCS8, Algorithm::Rs256, RSA_ID),
        (RSA_PUBLIC, Algorithm::Rs256, RSA_ID),
        (EC, Algorithm::Es256, EC_ID),
        (EC_PUBLIC, Algorithm::Es256, EC_ID),
    ] {
        let keys = VerifyingKey::read_all(&file(&dir, form)).unwrap();
        assert_eq!((keys.len(), keys[0].algorithm, keys[0].id.as_str()), (1, algorithm, id));
    }
    let both = VerifyingKey::read_all(&file(&dir, &format!("{EC_PUBLIC}{RSA_PUBLIC}"))).unwrap();
    assert_eq!(both.iter().map(|key| key.id.as_str()).collect::<Vec<_>>(), [EC_ID, RSA_ID]);
}

#[test]
fn signature_verifies_with_its_public_key_only() {
    let dir = tempfile::tempdir().unwrap();
    let other = VerifyingKey::read_all(&file(&dir, EC_PUBLIC)).unwrap().remove(0);
    for (private, public) in [(RSA, RSA_PUBLIC), (RSA_PKCS8, RSA_PUBLIC)] {
        let signer = TokenSigner::read(&file(&dir, private)).unwrap();
        let key = VerifyingKey::read_all(&file(&dir, public)).unwrap().remove(0);
        let signature = signer.sign(b"text");
        assert_eq!(signature, signer.sign(b"text"), "the same each time");
        assert!(key.verifies(b"text", &signature));
        assert!(!key.verifies(b"test", &signature) && !other.verifies(b"text", &signature));
    }
    let signature = TokenSigner::read(&file(&dir, EC)).unwrap().sign(b"text");
    assert!(other.verifies(b"text", &signature) && !other.verifies(b"test", &signature));
}

#[test]
fn a_key_set_has_the_numbers_of_an_rsa_key() {
    let dir = tempfile::tempdir().unwrap();
    let key = VerifyingKey::read_all(&file(&dir, RSA)).unwrap().remove(0).jwk();
    assert_eq!((&key["kty"], &key["alg"], &key["kid"]), (&json!("RSA"), &json!("RS256"), &json!(RSA_ID)));
    assert_eq!(key["e"], "AQAB");
    assert_eq!(BASE64.decode(key["n"].as_str().unwrap()).unwrap().len(), 256, "no sign in front");
}

#[test]
fn files_without_a_key_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = file(&dir, "rubbish");
    let all = VerifyingKey::read_all(&path).unwrap_err().to_string();
    assert_eq!(all, format!("{} does not hold an RSA or P-256 key", path.display()));
    let public = file(&dir, EC_PUBLIC);
    let error = TokenSigner::read(&public).err().unwrap().to_string();
    assert_eq!(error, format!("{} does not hold an RSA or P-256 private key", public.display()));
}

/// `openssl ecparam -name prime256v1 -genkey -noout`, the form in which Kubernetes' components read both
/// halves; PKCS #8 of the same key is not enough for `--service-account-key-file`.
#[test]
fn ec_keys_are_written_as_openssl_and_go_do() {
    let section = sections(EC).find(|(kind, _)| *kind == SectionKind::EcPrivateKey).unwrap();
    let key = p256::SecretKey::from_sec1_der(&section.1).unwrap();
    let written = ec_private_key(&key);
    assert!(EC.contains(written.trim_end()), "{written}");
    let public = TokenSigner::from_pem(&written, Path::new("sa.key")).unwrap().public();
    assert_eq!(public.to_pem(), EC_PUBLIC);
    let rsa = TokenSigner::from_pem(RSA, Path::new("sa.key")).unwrap().public();
    assert_eq!(rsa.to_pem(), RSA_PUBLIC);
}
