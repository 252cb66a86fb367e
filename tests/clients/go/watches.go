package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	toolswatch "k8s.io/client-go/tools/watch"
)

// watches are what command-line tools wait with.
func watches(e env) {
	maps := e.client.CoreV1().ConfigMaps("default")
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return maps.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return maps.Watch(ctx, options)
		},
	}
	start := must(maps.List(e.ctx, metav1.ListOptions{})).ResourceVersion
	done := make(chan string)
	reaches := func(value string) toolswatch.ConditionFunc {
		return func(event watch.Event) (bool, error) {
			found, is := event.Object.(*corev1.ConfigMap)
			return is && found.Name == "waited" && found.Data["value"] == value, nil
		}
	}
	go func() {
		try(ignore(toolswatch.UntilWithSync(e.ctx, source, &corev1.ConfigMap{}, nil, reaches("2"))))
		done <- "synced"
	}()
	go func() {
		try(ignore(toolswatch.Until(e.ctx, start, source, reaches("1"), reaches("3"))))
		done <- "in order"
	}()
	must(maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "waited"}}, creating))
	for _, value := range []string{"1", "2"} {
		e.setValue("waited", value)
	}
	expect(<-done == "synced", "the other ended first")
	e.setValue("waited", "3")
	expect(<-done == "in order", "the other ended twice")
	e.whole(start)
	_, err := maps.Watch(e.ctx, metav1.ListOptions{ResourceVersion: "no number"})
	// Kubernetes takes it for an error of its own.
	refused(func(err error) bool {
		status, ok := err.(apierrors.APIStatus)
		return ok && status.Status().Code == http.StatusInternalServerError
	}, err)
}

func ignore(_ *watch.Event, err error) error { return err }

func (e env) setValue(name, value string) {
	patch := fmt.Sprintf(`{"data":{"value":%q}}`, value)
	must(e.client.CoreV1().ConfigMaps("default").Patch(e.ctx, name, types.MergePatchType, []byte(patch), patching))
}

// whole watches from a version in the past: everything since is told, in order, with selectors.
func (e env) whole(start string) {
	watcher := must(toolswatch.NewRetryWatcherWithContext(e.ctx, start, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = "metadata.name=waited"
			return e.client.CoreV1().ConfigMaps("default").Watch(ctx, options)
		},
	}))
	defer watcher.Stop()
	var seen []string
	for event := range watcher.ResultChan() {
		seen = append(seen, string(event.Type)+event.Object.(*corev1.ConfigMap).Data["value"])
		if len(seen) == 4 {
			break
		}
	}
	expect(slices.Equal(seen, []string{"ADDED", "MODIFIED1", "MODIFIED2", "MODIFIED3"}), "%v", seen)
}

// pages lists in chunks.
func pages(e env) {
	maps := e.client.CoreV1().ConfigMaps("default")
	var names []string
	for i := range 50 {
		name := fmt.Sprintf("page-%02d", i)
		must(maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, creating))
		names = append(names, name)
	}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return maps.List(ctx, options)
	})
	list.PageSize = 7
	var seen []string
	try(list.EachListItem(e.ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		seen = append(seen, object.(*corev1.ConfigMap).Name)
		return nil
	}))
	expect(slices.Equal(seen, names), "%v", seen)
	expect(e.wire.count("GET", "limit=7") == 8, "%v", e.wire.requests)
	first := must(maps.List(e.ctx, metav1.ListOptions{Limit: 10}))
	expect(first.RemainingItemCount != nil && *first.RemainingItemCount == 40, "remaining: %v", first.ListMeta)
	// The pages are of one version, whatever happens between them.
	try(maps.Delete(e.ctx, "page-30", now))
	rest := must(maps.List(e.ctx, metav1.ListOptions{Limit: 100, Continue: first.Continue}))
	expect(len(rest.Items) == 40 && rest.ResourceVersion == first.ResourceVersion, "%d at %s", len(rest.Items),
		rest.ResourceVersion)
}
