package main

import (
	"bytes"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// typed uses the generated clients in protobuf.
func typed(e env) {
	// What controllers would have made, and pods need.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	must(e.client.CoreV1().ServiceAccounts("default").Create(e.ctx, account, creating))
	e.configMaps()
	e.podsThroughTheirLife()
	e.podsTogether()
	e.deployments()
	e.leases()
	e.events()
	e.accounts()
	e.wire.Lock()
	defer e.wire.Unlock()
	// Protobuf was not merely asked for.
	expect(len(e.wire.types) == 1 && e.wire.types["application/vnd.kubernetes.protobuf"] > 0, "%v", e.wire.types)
}

func (e env) configMaps() {
	maps := e.client.CoreV1().ConfigMaps("default")
	binary := []byte{0, 0xff, 0xfe, '\n'}
	made := must(maps.Create(e.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "made-", Labels: map[string]string{"a": "b"}},
		Data:       map[string]string{"key": "ü\n"},
		BinaryData: map[string][]byte{"binary": binary},
	}, creating))
	expect(len(made.Name) == len("made-")+5, "generated name %q", made.Name)
	found := must(maps.Get(e.ctx, made.Name, getting))
	expect(found.Data["key"] == "ü\n" && bytes.Equal(found.BinaryData["binary"], binary), "%v", found)
	_, err := maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: made.Name}}, creating)
	refused(apierrors.IsAlreadyExists, err)
	_, err = maps.Get(e.ctx, "nothing", getting)
	refused(apierrors.IsNotFound, err)
	_, err = maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "Bad Name"}}, creating)
	refused(apierrors.IsInvalid, err)
	causes := err.(*apierrors.StatusError).ErrStatus.Details.Causes
	expect(len(causes) == 1 && causes[0].Field == "metadata.name", "%v", causes)
	dry := must(maps.Update(e.ctx, found, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}}))
	expect(dry.ResourceVersion == found.ResourceVersion, "a dry run made version %s", dry.ResourceVersion)
	immutable := true
	found.Immutable = &immutable
	found = must(maps.Update(e.ctx, found, updating))
	found.Data["key"] = "other"
	_, err = maps.Update(e.ctx, found, updating)
	refused(apierrors.IsInvalid, err)
	wrong := types.UID("another")
	err = maps.Delete(e.ctx, made.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &wrong}})
	refused(apierrors.IsConflict, err)
	try(maps.Delete(e.ctx, made.Name, metav1.DeleteOptions{}))
}

func pod(name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func (e env) podsThroughTheirLife() {
	pods := e.client.CoreV1().Pods("default")
	made := must(pods.Create(e.ctx, pod("a", nil), creating))
	expect(made.Spec.RestartPolicy == corev1.RestartPolicyAlways, "no defaults: %v", made.Spec)
	expect(made.Status.QOSClass == corev1.PodQOSBestEffort, "class %q", made.Status.QOSClass)
	stale := made.DeepCopy()
	made.Labels = map[string]string{"updated": "yes"}
	must(pods.Update(e.ctx, made, updating))
	_, err := pods.Update(e.ctx, stale, updating)
	refused(apierrors.IsConflict, err)
	for kind, patch := range map[types.PatchType]string{
		types.StrategicMergePatchType: `{"spec":{"containers":[{"name":"c","image":"strategic"}]}}`,
		types.MergePatchType:          `{"metadata":{"labels":{"merged":"yes"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/labels/json","value":"yes"}]`,
	} {
		must(pods.Patch(e.ctx, "a", kind, []byte(patch), patching))
	}
	found := must(pods.Get(e.ctx, "a", getting))
	expect(len(found.Labels) == 3 && found.Spec.Containers[0].Image == "strategic", "patched: %v", found)
	found.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: "d", TerminationMessagePolicy: corev1.TerminationMessageReadFile}}}
	found = must(pods.UpdateEphemeralContainers(e.ctx, "a", found, updating))
	expect(len(found.Spec.EphemeralContainers) == 1, "ephemeral: %v", found.Spec)
	try(pods.Bind(e.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n"}}, creating))
	found = must(pods.Get(e.ctx, "a", getting))
	expect(found.Spec.NodeName == "n", "bound to %q", found.Spec.NodeName)
	found.Status.Phase = corev1.PodRunning
	found = must(pods.UpdateStatus(e.ctx, found, updating))
	expect(found.Status.Phase == corev1.PodRunning, "phase %q", found.Status.Phase)
	running := metav1.ListOptions{FieldSelector: "spec.nodeName=n,status.phase=Running"}
	expect(len(must(pods.List(e.ctx, running)).Items) == 1, "the pod was not selected by its fields")
	try(pods.EvictV1(e.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "a"}}))
	found = must(pods.Get(e.ctx, "a", getting))
	expect(found.DeletionTimestamp != nil && *found.DeletionGracePeriodSeconds == 30, "evicted: %v", found)
	try(pods.Delete(e.ctx, "a", now))
}

func (e env) podsTogether() {
	pods := e.client.CoreV1().Pods("default")
	for _, name := range []string{"x", "y", "z"} {
		must(pods.Create(e.ctx, pod(name, map[string]string{"name": name}), creating))
	}
	some := metav1.ListOptions{LabelSelector: "name in (x,y)"}
	expect(len(must(pods.List(e.ctx, some)).Items) == 2, "two pods were not selected by label")
	try(pods.DeleteCollection(e.ctx, now, some))
	left := must(pods.List(e.ctx, metav1.ListOptions{})).Items
	expect(len(left) == 1 && left[0].Name == "z", "left: %v", left)
	// Lists with semantics of their own.
	version := must(pods.List(e.ctx, metav1.ListOptions{})).ResourceVersion
	exact := metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1}
	try(pods.Delete(e.ctx, "z", now))
	expect(len(must(pods.List(e.ctx, exact)).Items) == 1, "the list at version %s", version)
	expect(len(must(pods.List(e.ctx, metav1.ListOptions{ResourceVersion: "0"})).Items) <= 1, "the list at any version")
}

func deployment(name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", nil).Spec},
		},
	}
}

func (e env) deployments() {
	client := e.client.AppsV1().Deployments("default")
	made := must(client.Create(e.ctx, deployment("web"), creating))
	expect(*made.Spec.Replicas == 1 && made.Generation == 1, "%v", made.Spec)
	expect(*made.Spec.Strategy.RollingUpdate.MaxSurge == intstr.FromString("25%"), "%v", made.Spec.Strategy)
	scale := must(client.GetScale(e.ctx, "web", getting))
	expect(scale.Status.Selector == "app=web", "selector %q", scale.Status.Selector)
	scale.Spec.Replicas = 5
	must(client.UpdateScale(e.ctx, "web", scale, updating))
	found := must(client.Get(e.ctx, "web", getting))
	expect(*found.Spec.Replicas == 5 && found.Generation == 2, "scaled: %v", found.Spec)
	found.Status.ObservedGeneration, found.Status.Replicas = 2, 5
	found = must(client.UpdateStatus(e.ctx, found, updating))
	expect(found.Status.Replicas == 5 && found.Generation == 2, "reported: %v", found.Status)
	found.Spec.Selector.MatchLabels["app"] = "other"
	_, err := client.Update(e.ctx, found, updating)
	refused(apierrors.IsInvalid, err)
	try(client.Delete(e.ctx, "web", metav1.DeleteOptions{}))
}

func (e env) leases() {
	client := e.client.CoordinationV1().Leases("default")
	at := metav1.NewMicroTime(time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC))
	holder := "me"
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &at}}
	must(client.Create(e.ctx, lease, creating))
	found := must(client.Get(e.ctx, "lease", getting))
	expect(found.Spec.RenewTime.Equal(&at), "%v became %v", at, found.Spec.RenewTime)
}

// events are what recorders write: the same one again is counted, not written again.
func (e env) events() {
	broadcaster := record.NewBroadcaster(record.WithContext(e.ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: e.client.CoreV1().Events("")})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "check"})
	about := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: "default", Name: "z", UID: "u"}
	for range 3 {
		recorder.Event(about, corev1.EventTypeNormal, "Checked", "it was looked at")
	}
	selected := metav1.ListOptions{FieldSelector: "involvedObject.name=z,reason=Checked"}
	e.eventually("an event that is counted three times", func() bool {
		found := must(e.client.CoreV1().Events("default").List(e.ctx, selected)).Items
		return len(found) == 1 && found[0].Count == 3
	})
}

// accounts asks who somebody is, and what they may.
func (e env) accounts() {
	token := must(e.client.CoreV1().ServiceAccounts("default").CreateToken(e.ctx, "default",
		&authenticationv1.TokenRequest{}, creating)).Status.Token
	review := must(e.client.AuthenticationV1().TokenReviews().Create(e.ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, creating))
	expect(review.Status.User.Username == "system:serviceaccount:default:default", "%v", review.Status)
	may := func(user string) bool {
		return must(e.client.AuthorizationV1().SubjectAccessReviews().Create(e.ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: "create", Group: "apps", Resource: "deployments", Namespace: "default"}},
		}, creating)).Status.Allowed
	}
	expect(!may(review.Status.User.Username), "the account may create deployments")
	expect(may("system:kube-controller-manager") == false && may("system:serviceaccount:kube-system:x") == false,
		"somebody may create deployments")
}
