package main

import (
	"strconv"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applyappsv1 "k8s.io/client-go/applyconfigurations/apps/v1"
	applyautoscalingv1 "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/util/retry"
)

// apply is server-side apply by its generated types, and what others do meanwhile.
func apply(e env) {
	client := e.client.AppsV1().Deployments("default")
	wanted := func(replicas int32, image string) *applyappsv1.DeploymentApplyConfiguration {
		labels := map[string]string{"app": "web"}
		return applyappsv1.Deployment("web", "default").WithSpec(applyappsv1.DeploymentSpec().
			WithReplicas(replicas).
			WithSelector(applymetav1.LabelSelector().WithMatchLabels(labels)).
			WithTemplate(applycorev1.PodTemplateSpec().WithLabels(labels).WithSpec(applycorev1.PodSpec().
				WithContainers(applycorev1.Container().WithName("c").WithImage(image)))))
	}
	as := func(manager string, force bool) metav1.ApplyOptions {
		return metav1.ApplyOptions{FieldManager: manager, Force: force}
	}
	must(client.Apply(e.ctx, wanted(1, "i:1"), as("owner", false)))
	// A scaler takes the count of replicas through the subresource.
	must(client.ApplyScale(e.ctx, "web", applyautoscalingv1.Scale().
		WithSpec(applyautoscalingv1.ScaleSpec().WithReplicas(4)), as("scaler", true)))
	_, err := client.Apply(e.ctx, wanted(1, "i:2"), as("owner", false))
	refused(apierrors.IsConflict, err)
	causes := err.(*apierrors.StatusError).ErrStatus.Details.Causes
	expect(len(causes) == 1 && causes[0].Type == metav1.CauseTypeFieldManagerConflict &&
		causes[0].Field == ".spec.replicas", "%v", causes)
	found := must(client.Get(e.ctx, "web", getting))
	expect(*found.Spec.Replicas == 4 && found.Spec.Template.Spec.Containers[0].Image == "i:1", "%v", found.Spec)

	// What a manager owns is extracted, changed and applied again.
	owned := must(applyappsv1.ExtractDeployment(found, "owner"))
	expect(owned.Spec.Replicas == nil && *owned.Spec.Template.Spec.Containers[0].Image == "i:1", "%v", owned.Spec)
	owned.Spec.Template.Spec.Containers[0].WithImage("i:3")
	must(client.Apply(e.ctx, owned, as("owner", false)))
	found = must(client.Apply(e.ctx, wanted(2, "i:4"), as("owner", true)))
	expect(*found.Spec.Replicas == 2 && found.Generation == 4, "%v", found)
	e.status(found)
	e.counter()
}

// status is applied apart from the rest.
func (e env) status(before *appsv1.Deployment) {
	reported := applyappsv1.Deployment("web", "default").WithStatus(applyappsv1.DeploymentStatus().
		WithObservedGeneration(before.Generation).
		WithConditions(applyappsv1.DeploymentCondition().WithType(appsv1.DeploymentAvailable).
			WithStatus(corev1.ConditionTrue)))
	found := must(e.client.AppsV1().Deployments("default").ApplyStatus(e.ctx, reported,
		metav1.ApplyOptions{FieldManager: "controller"}))
	expect(found.Generation == before.Generation && len(found.Status.Conditions) == 1, "%v", found.Status)
	mine := must(applyappsv1.ExtractDeploymentStatus(found, "controller"))
	expect(mine.Spec == nil && len(mine.Status.Conditions) == 1, "%v", mine)
}

// counter is raised by several at once, each of whom tries again after a conflict.
func (e env) counter() {
	maps := e.client.CoreV1().ConfigMaps("default")
	must(maps.Create(e.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "counter"},
		Data: map[string]string{"count": "0"}}, creating))
	const workers, times = 4, 10
	again := retry.DefaultRetry
	again.Steps = 100
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for range times {
				try(retry.RetryOnConflict(again, func() error {
					found, err := maps.Get(e.ctx, "counter", getting)
					if err != nil {
						return err
					}
					found.Data["count"] = strconv.Itoa(must(strconv.Atoi(found.Data["count"])) + 1)
					_, err = maps.Update(e.ctx, found, updating)
					return err
				}))
			}
		})
	}
	group.Wait()
	count := must(maps.Get(e.ctx, "counter", getting)).Data["count"]
	expect(count == strconv.Itoa(workers*times), "the count is %s", count)
}
