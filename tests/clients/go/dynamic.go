package main

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
)

var (
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1",
		Resource: "customresourcedefinitions"}
	boats = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "boats"}
)

type object = map[string]any

// definition is a CustomResourceDefinition with everything that controllers use.
func definition() *unstructured.Unstructured {
	number := object{"type": "integer", "format": "int64", "minimum": int64(0)}
	properties := object{
		"spec": object{"type": "object", "properties": object{
			"seats": object{"type": "integer", "default": int64(2)},
			"sails": number, "name": object{"type": "string"},
		}},
		"status": object{"type": "object", "properties": object{"sails": number}},
	}
	return &unstructured.Unstructured{Object: object{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": object{"name": "boats.example.com"},
		"spec": object{
			"group": "example.com", "scope": "Namespaced",
			"names": object{"plural": "boats", "singular": "boat", "kind": "Boat", "shortNames": []any{"bo"},
				"categories": []any{"all"}},
			"versions": []any{object{
				"name": "v1", "served": true, "storage": true,
				"schema": object{"openAPIV3Schema": object{"type": "object", "properties": properties}},
				"subresources": object{"status": object{}, "scale": object{
					"specReplicasPath": ".spec.sails", "statusReplicasPath": ".status.sails"}},
			}},
		},
	}}
}

// define makes the kind, and waits until it is served.
func (e env) define(client dynamic.Interface) {
	must(client.Resource(definitions).Create(e.ctx, definition(), creating))
	e.eventually("the definition to be established", func() bool {
		found := must(client.Resource(definitions).Get(e.ctx, "boats.example.com", getting))
		// Before there is a condition the list is null.
		conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
		return slices.ContainsFunc(conditions, func(condition any) bool {
			of := condition.(object)
			return of["type"] == "Established" && of["status"] == "True"
		})
	})
}

func boat(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: object{"apiVersion": "example.com/v1", "kind": "Boat",
		"metadata": object{"name": name}, "spec": object{"name": name, "sails": int64(1)}}}
}

// dynamicClients know no types: a kind that is defined on the way, by dynamic and metadata clients.
func dynamicClients(e env) {
	client := must(dynamic.NewForConfig(e.config))
	e.define(client)
	counted, partly := newTally(), newTally()
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	must(factory.ForResource(boats).Informer().AddEventHandler(counted.handler()))
	factory.Start(e.ctx.Done())
	factory.WaitForCacheSync(e.ctx.Done())
	meta := must(metadata.NewForConfig(e.config))
	light := metadatainformer.NewSharedInformerFactory(meta, 0)
	must(light.ForResource(boats).Informer().AddEventHandler(partly.handler()))
	light.Start(e.ctx.Done())
	light.WaitForCacheSync(e.ctx.Done())

	e.boatsThroughTheirLife(client.Resource(boats).Namespace("default"))
	e.metadataAlone(meta)
	want := [6]int{4, 4, 4, 4, 8, 4}
	e.eventually("every change", func() bool { return counted.totals() == want && partly.totals() == want })

	// With the definition, its objects and their watches end.
	must(client.Resource(boats).Namespace("default").Create(e.ctx, boat("last"), creating))
	try(client.Resource(definitions).Delete(e.ctx, "boats.example.com", metav1.DeleteOptions{}))
	e.eventually("the end of the kind", func() bool {
		_, err := client.Resource(boats).List(e.ctx, metav1.ListOptions{})
		return apierrors.IsNotFound(err)
	})
	e.eventually("the end of the last", func() bool { return counted.totals()[5] == 5 && partly.totals()[5] == 5 })
}

// boatsThroughTheirLife makes four, each of which is changed twice.
func (e env) boatsThroughTheirLife(client dynamic.ResourceInterface) {
	for i := range 4 {
		name := fmt.Sprintf("boat-%d", i)
		made := must(client.Create(e.ctx, boat(name), creating))
		seats, _, _ := unstructured.NestedInt64(made.Object, "spec", "seats")
		expect(seats == 2, "no default: %v", made.Object)
		try(unstructured.SetNestedField(made.Object, int64(7), "status", "sails"))
		try(unstructured.SetNestedField(made.Object, int64(9), "spec", "sails"))
		reported := must(client.UpdateStatus(e.ctx, made, updating))
		sails, _, _ := unstructured.NestedInt64(reported.Object, "spec", "sails")
		expect(sails == 1, "the status changed the spec: %v", reported.Object)
	}
	invalid := boat("invalid")
	try(unstructured.SetNestedField(invalid.Object, int64(-1), "spec", "sails"))
	_, err := client.Create(e.ctx, invalid, creating)
	refused(apierrors.IsInvalid, err)
	scaled := must(client.Patch(e.ctx, "boat-0", types.MergePatchType, []byte(`{"spec":{"replicas":3}}`), patching, "scale"))
	replicas, _, _ := unstructured.NestedInt64(scaled.Object, "status", "replicas")
	expect(scaled.GetKind() == "Scale" && replicas == 7, "%v", scaled.Object)
	listed := must(client.List(e.ctx, metav1.ListOptions{}))
	expect(len(listed.Items) == 4 && listed.GetKind() == "BoatList", "%v", listed)
}

// metadataAlone labels and deletes without knowing more of an object than its metadata.
func (e env) metadataAlone(client metadata.Interface) {
	some := client.Resource(boats).Namespace("default")
	for i := 1; i < 4; i++ {
		patch := []byte(`{"metadata":{"labels":{"seen":"yes"}}}`)
		must(some.Patch(e.ctx, fmt.Sprintf("boat-%d", i), types.MergePatchType, patch, patching))
	}
	seen := must(some.List(e.ctx, metav1.ListOptions{LabelSelector: "seen=yes"}))
	expect(len(seen.Items) == 3, "%v", seen)
	try(some.DeleteCollection(e.ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "seen=yes"}))
	try(some.Delete(e.ctx, "boat-0", metav1.DeleteOptions{}))
}
