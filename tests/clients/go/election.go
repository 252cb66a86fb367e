package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// election has two candidates; when the leader goes, the other one leads.
func election(e env) {
	led := make(chan string, 2)
	ended := make(chan string, 2)
	candidate := func(name string) context.CancelFunc {
		ctx, cancel := context.WithCancel(e.ctx)
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "leader", Namespace: "kube-system"},
			Client:     e.client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}
		go func() {
			leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
				Lock: lock, ReleaseOnCancel: true, Name: name,
				LeaseDuration: 60 * time.Second, RenewDeadline: 30 * time.Second, RetryPeriod: 100 * time.Millisecond,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { led <- name },
					OnStoppedLeading: func() {},
				},
			})
			ended <- name
		}()
		return cancel
	}
	stops := map[string]context.CancelFunc{"a": candidate("a"), "b": candidate("b")}
	first := <-led
	// The lease is renewed, and nobody else leads meanwhile.
	lease := func() (string, time.Time) {
		found := must(e.client.CoordinationV1().Leases("kube-system").Get(e.ctx, "leader", getting))
		return *found.Spec.HolderIdentity, found.Spec.RenewTime.Time
	}
	_, begun := lease()
	e.eventually("three renewals", func() bool {
		holder, renewed := lease()
		expect(holder == first && len(led) == 0, "%s leads beside %s", holder, first)
		return renewed.Sub(begun) > 300*time.Millisecond
	})
	stops[first]()
	expect(<-ended == first, "the other one ended")
	// It was released: the other need not wait until it runs out.
	second := <-led
	expect(second != first, "%s leads twice", first)
	found := must(e.client.CoordinationV1().Leases("kube-system").Get(e.ctx, "leader", getting))
	expect(*found.Spec.LeaseTransitions >= 1, "%v", found.Spec)
	stops[second]()
	<-ended
}
