package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/disk"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/restmapper"
)

// discover finds out what the server can do, with every cache that tools keep of it.
func discover(e env) {
	client := must(discovery.NewDiscoveryClientForConfig(e.config))
	version := must(client.ServerVersion())
	expect(version.Major == "1" && strings.HasPrefix(version.Minor, "36"), "%v", version)
	groups, resources, err := client.ServerGroupsAndResources()
	try(err)
	expect(len(groups) > 15 && len(resources) >= len(groups), "%d groups, %d lists", len(groups), len(resources))
	// Aggregated: two documents, not one for each version.
	expect(e.wire.count("GET", "/api") == 2, "%v", e.wire.requests)
	old := must(discovery.NewDiscoveryClientForConfig(e.config))
	old.UseLegacyDiscovery = true
	_, legacy, err := old.ServerGroupsAndResources()
	try(err)
	expect(slices.Equal(kinds(resources), kinds(legacy)), "the two ways of discovery differ")
	preferred := must(discovery.ServerPreferredNamespacedResources(client))
	expect(slices.Contains(kinds(preferred), "apps/v1 deployments"), "%v", kinds(preferred))

	e.mapping(client)
	e.schemas(client)
	e.onDisk()
}

// kinds are the resources as GROUP/VERSION NAME, sorted.
func kinds(lists []*metav1.APIResourceList) []string {
	var all []string
	for _, list := range lists {
		for _, resource := range list.APIResources {
			all = append(all, list.GroupVersion+" "+resource.Name)
		}
	}
	slices.Sort(all)
	return all
}

// mapping goes from kinds to resources and back, also for a kind that came later.
func (e env) mapping(client discovery.DiscoveryInterface) {
	cached := memory.NewMemCacheClient(client)
	deferred := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	mapper := restmapper.NewShortcutExpander(deferred, cached, nil)
	mapping := must(mapper.RESTMapping(schema.GroupKind{Group: "apps", Kind: "Deployment"}))
	expect(mapping.Resource.Resource == "deployments" && mapping.Scope.Name() == meta.RESTScopeNameNamespace, "%v", mapping)
	for short, kind := range map[string]string{"po": "Pod", "deploy": "Deployment", "crd": "CustomResourceDefinition"} {
		found := must(mapper.KindFor(schema.GroupVersionResource{Resource: short}))
		expect(found.Kind == kind, "%s is %v", short, found)
	}
	boat := schema.GroupKind{Group: "example.com", Kind: "Boat"}
	_, err := mapper.RESTMapping(boat)
	refused(meta.IsNoMatchError, err)
	e.define(must(dynamic.NewForConfig(e.config)))
	e.eventually("the new kind in discovery", func() bool {
		deferred.Reset()
		mapping, err = mapper.RESTMapping(boat)
		return err == nil
	})
	expect(mapping.Resource == boats, "%v", mapping)
	found := must(mapper.KindFor(schema.GroupVersionResource{Resource: "bo"}))
	expect(found.Kind == "Boat", "bo is %v", found)
}

// schemas reads OpenAPI of both versions, in protobuf and JSON.
func (e env) schemas(client discovery.DiscoveryInterface) {
	document := must(client.OpenAPISchema())
	expect(document.Swagger == "2.0" && len(document.Definitions.AdditionalProperties) > 500,
		"%d definitions", len(document.Definitions.AdditionalProperties))
	root := openapi3.NewRoot(client.OpenAPIV3())
	versions := must(root.GroupVersions())
	expect(slices.Contains(versions, schema.GroupVersion{Group: "apps", Version: "v1"}), "%v", versions)
	spec := must(root.GVSpec(schema.GroupVersion{Version: "v1"}))
	expect(spec.Components.Schemas["io.k8s.api.core.v1.Pod"] != nil, "there is no schema of pods")
	e.eventually("the schema of the new kind", func() bool {
		// A root remembers what paths there were.
		spec, err := openapi3.NewRoot(client.OpenAPIV3()).GVSpec(boats.GroupVersion())
		return err == nil && spec.Components.Schemas["com.example.v1.Boat"] != nil
	})
}

// onDisk asks with kubectl's cache: what did not change is not sent again.
func (e env) onDisk() {
	dir := must(os.MkdirTemp(".", "discovery"))
	ask := func() int {
		client := must(disk.NewCachedDiscoveryClientForConfig(e.config, filepath.Join(dir, "a"), filepath.Join(dir, "b"), time.Hour))
		_, resources, err := client.ServerGroupsAndResources()
		try(err)
		client.Invalidate()
		_, again, err := client.ServerGroupsAndResources()
		try(err)
		expect(slices.Equal(kinds(resources), kinds(again)), "the documents differ from what is cached")
		return len(again)
	}
	expect(ask() == ask(), "another count of groups from the disk")
}
