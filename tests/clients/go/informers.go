package main

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// tally counts what handlers are told of.
type tally struct {
	sync.Mutex
	added, updated, deleted map[string]int
}

func newTally() *tally {
	return &tally{added: map[string]int{}, updated: map[string]int{}, deleted: map[string]int{}}
}

func (t *tally) handler() cache.ResourceEventHandler {
	note := func(counts map[string]int, object any) {
		t.Lock()
		defer t.Unlock()
		name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object)
		try(err)
		counts[name]++
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { note(t.added, object) },
		UpdateFunc: func(before, after any) {
			// Resyncs bring the same version again.
			if before.(metav1.Object).GetResourceVersion() != after.(metav1.Object).GetResourceVersion() {
				note(t.updated, after)
			}
		},
		DeleteFunc: func(object any) { note(t.deleted, object) },
	}
}

// totals are how many objects were told of, and how often.
func (t *tally) totals() [6]int {
	t.Lock()
	defer t.Unlock()
	var totals [6]int
	for i, counts := range []map[string]int{t.added, t.updated, t.deleted} {
		totals[i] = len(counts)
		for _, count := range counts {
			totals[i+3] += count
		}
	}
	return totals
}

// change makes ConfigMaps, updates two thirds of them and deletes one third.
func (e env) change(prefix string, count int) {
	maps := e.client.CoreV1().ConfigMaps("default")
	for i := range count {
		name := fmt.Sprintf("%s-%d", prefix, i)
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"set": prefix}}}
		must(maps.Create(e.ctx, made, creating))
		if i%3 != 0 {
			must(maps.Patch(e.ctx, name, types.MergePatchType, []byte(`{"data":{"updated":"yes"}}`), patching))
		}
		if i%3 == 2 {
			try(maps.Delete(e.ctx, name, now))
		}
	}
}

// sharedInformers follows objects as controllers do, with indexes, listers and a queue.
func sharedInformers(e env) {
	e.change("before", 30)
	factory := informers.NewSharedInformerFactoryWithOptions(e.client, 0, informers.WithNamespace("default"))
	maps := factory.Core().V1().ConfigMaps()
	try(maps.Informer().AddIndexers(cache.Indexers{"set": func(object any) ([]string, error) {
		return []string{object.(*corev1.ConfigMap).Labels["set"]}, nil
	}}))
	counted := newTally()
	must(maps.Informer().AddEventHandler(counted.handler()))
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())
	defer queue.ShutDown()
	must(maps.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		queue.Add(object.(metav1.Object).GetName())
	}}))
	factory.Start(e.ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(e.ctx.Done()) {
		expect(synced, "%v did not come", kind)
	}
	expect(len(must(maps.Informer().GetIndexer().ByIndex("set", "before"))) == 20, "the index has another count")
	e.change("after", 60)
	want := [6]int{20 + 60, 40, 20, 20 + 60, 40, 20}
	e.eventually("every change", func() bool { return counted.totals() == want })
	found := must(maps.Lister().ConfigMaps("default").List(labels.SelectorFromSet(labels.Set{"set": "after"})))
	expect(len(found) == 40, "the lister has %d", len(found))
	for range 80 {
		name, _ := queue.Get()
		queue.Done(name)
	}
	// Everything came by one streaming list: no list before it, and none after it.
	expect(e.wire.count("GET", "/configmaps?", "sendInitialEvents=true") == 1, "%v", e.wire.requests)
	expect(e.wire.count("GET", "/configmaps") == 1, "%v", e.wire.requests)
	expect(counted.totals() == want, "%v", counted.totals())
}

// restart follows objects while the server goes away and comes back.
func restart(e env) {
	counted := newTally()
	factory := informers.NewSharedInformerFactoryWithOptions(e.client, 0, informers.WithNamespace("default"))
	maps := factory.Core().V1().ConfigMaps()
	must(maps.Informer().AddEventHandler(counted.handler()))
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	e.change("before", 30)
	e.eventually("the changes before", func() bool { return counted.totals() == [6]int{30, 20, 10, 30, 20, 10} })
	ask("restart the server")
	e.eventually("the server", func() bool {
		_, err := e.client.CoreV1().Namespaces().Get(e.ctx, "default", getting)
		return err == nil
	})
	e.change("after", 30)
	// Nothing is told twice, and nothing is lost.
	want := [6]int{60, 40, 20, 60, 40, 20}
	e.eventually("the changes after", func() bool { return counted.totals() == want })
	listed := must(e.client.CoreV1().ConfigMaps("default").List(e.ctx, metav1.ListOptions{})).Items
	expect(len(maps.Informer().GetStore().List()) == len(listed), "the store differs from the server's")
	expect(counted.totals() == want, "%v", counted.totals())
}
