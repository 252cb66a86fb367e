//! etcd, in the key layout of Kubernetes.
