//! Crashes, takeovers and full maps.
