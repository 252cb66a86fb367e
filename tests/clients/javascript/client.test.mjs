// The JavaScript client against `hawser apiserver`, with Node's own test runner.

import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import * as k8s from '@kubernetes/client-node';

const config = new k8s.KubeConfig();
config.loadFromFile(process.env.KUBECONFIG);
const core = config.makeApiClient(k8s.CoreV1Api);
const namespace = 'default';

// A promise with its resolver outside, and a limit that only ends a test that hangs.
function signal() {
    let done;
    const promise = new Promise((resolve, reject) => {
        const limit = setTimeout(() => reject(new Error('nothing came')), 60_000);
        done = (value) => {
            clearTimeout(limit);
            resolve(value);
        };
    });
    return { promise, done };
}

async function refused(code, call) {
    await assert.rejects(call, (error) => {
        assert.equal(error.code, code, error.body);
        return true;
    });
}

before(async () => {
    await core.createNamespacedServiceAccount({ namespace, body: { metadata: { name: 'default' } } });
});

test('pods are made, listed, read, replaced and deleted', async () => {
    const body = { metadata: { name: 'p', labels: { app: 'p' } }, spec: { containers: [{ name: 'c', image: 'i' }] } };
    const made = await core.createNamespacedPod({ namespace, body });
    assert.equal(made.status.phase, 'Pending');
    assert.ok(made.metadata.creationTimestamp instanceof Date);
    await refused(409, core.createNamespacedPod({ namespace, body }));
    const listed = await core.listNamespacedPod({ namespace, labelSelector: 'app=p' });
    assert.deepEqual(listed.items.map((pod) => pod.metadata.name), ['p']);
    const everywhere = await core.listPodForAllNamespaces({ fieldSelector: 'metadata.name=p' });
    assert.equal(everywhere.items.length, 1);
    made.metadata.annotations = { note: 'x' };
    const replaced = await core.replaceNamespacedPod({ name: 'p', namespace, body: made });
    assert.deepEqual(replaced.metadata.annotations, { note: 'x' });
    await core.deleteNamespacedPod({ name: 'p', namespace, gracePeriodSeconds: 0 });
    await refused(404, core.readNamespacedPod({ name: 'p', namespace }));
});

test('config maps are patched in every way', async () => {
    await core.createNamespacedConfigMap({ namespace, body: { metadata: { name: 'm' }, data: { a: '1' } } });
    const patch = (body, strategy, more = {}) =>
        core.patchNamespacedConfigMap(
            { name: 'm', namespace, body, ...more },
            k8s.setHeaderOptions('Content-Type', strategy),
        );
    let map = await patch([{ op: 'add', path: '/data/b', value: '2' }], k8s.PatchStrategy.JsonPatch);
    assert.deepEqual(map.data, { a: '1', b: '2' });
    map = await patch({ data: { a: null } }, k8s.PatchStrategy.MergePatch);
    assert.deepEqual(map.data, { b: '2' });
    map = await patch({ data: { c: '3' } }, k8s.PatchStrategy.StrategicMergePatch);
    assert.deepEqual(map.data, { b: '2', c: '3' });
    const applied = { apiVersion: 'v1', kind: 'ConfigMap', metadata: { name: 'm' }, data: { c: '4' } };
    await refused(409, patch(applied, k8s.PatchStrategy.ServerSideApply, { fieldManager: 'javascript' }));
    map = await patch(applied, k8s.PatchStrategy.ServerSideApply, { fieldManager: 'javascript', force: true });
    assert.equal(map.data.c, '4');
    await core.deleteCollectionNamespacedConfigMap({ namespace, fieldSelector: 'metadata.name=m' });
    await refused(404, core.readNamespacedConfigMap({ name: 'm', namespace }));
});

test('lists come in pages', async () => {
    for (const name of ['a', 'b', 'c']) {
        await core.createNamespacedSecret({ namespace, body: { metadata: { name } } });
    }
    const first = await core.listNamespacedSecret({ namespace, limit: 2 });
    assert.equal(first.metadata.remainingItemCount, 1);
    const second = await core.listNamespacedSecret({ namespace, limit: 2, _continue: first.metadata._continue });
    assert.deepEqual([...first.items, ...second.items].map((secret) => secret.metadata.name), ['a', 'b', 'c']);
});

test('a watch tells of changes', async () => {
    const seen = [];
    const all = signal();
    const watch = new k8s.Watch(config);
    const start = await core.listNamespacedConfigMap({ namespace });
    const controller = await watch.watch(
        `/api/v1/namespaces/${namespace}/configmaps`,
        { resourceVersion: start.metadata.resourceVersion, labelSelector: 'watched=yes', allowWatchBookmarks: true },
        (type, object) => {
            seen.push(`${type} ${object.metadata.name}`);
            if (seen.length === 3) all.done();
        },
        () => {},
    );
    const body = { metadata: { name: 'w', labels: { watched: 'yes' } } };
    await core.createNamespacedConfigMap({ namespace, body });
    await core.replaceNamespacedConfigMap({ name: 'w', namespace, body: { ...body, data: { a: 'b' } } });
    await core.deleteNamespacedConfigMap({ name: 'w', namespace });
    await all.promise;
    controller.abort();
    assert.deepEqual(seen, ['ADDED w', 'MODIFIED w', 'DELETED w']);
});

test('an informer keeps a cache', async () => {
    const list = () => core.listNamespacedConfigMap({ namespace, labelSelector: 'informed=yes' });
    const path = `/api/v1/namespaces/${namespace}/configmaps`;
    const informer = k8s.makeInformer(config, path, list, 'informed=yes');
    const added = signal();
    const updated = signal();
    const deleted = signal();
    informer.on('add', (object) => added.done(object.metadata.name));
    informer.on('update', (object) => object.data?.a === 'b' && updated.done());
    informer.on('delete', () => deleted.done());
    informer.on('error', () => {});
    await informer.start();
    const body = { metadata: { name: 'i', labels: { informed: 'yes' } } };
    await core.createNamespacedConfigMap({ namespace, body });
    assert.equal(await added.promise, 'i');
    assert.equal(informer.list().length, 1);
    await core.replaceNamespacedConfigMap({ name: 'i', namespace, body: { ...body, data: { a: 'b' } } });
    await updated.promise;
    await core.deleteNamespacedConfigMap({ name: 'i', namespace });
    await deleted.promise;
    assert.equal(informer.list().length, 0);
    await informer.stop();
});

test('objects of any kind, custom ones too', async () => {
    const extensions = config.makeApiClient(k8s.ApiextensionsV1Api);
    const group = 'javascript.example.com';
    const schema = { openAPIV3Schema: { type: 'object', properties: { spec: { type: 'object', properties: { size: { type: 'integer', _default: 1 } } } } } };
    await extensions.createCustomResourceDefinition({
        body: {
            apiVersion: 'apiextensions.k8s.io/v1',
            kind: 'CustomResourceDefinition',
            metadata: { name: `widgets.${group}` },
            spec: { group, scope: 'Namespaced', names: { plural: 'widgets', kind: 'Widget' }, versions: [{ name: 'v1', served: true, storage: true, schema }] },
        },
    });
    for (;;) {
        const definition = await extensions.readCustomResourceDefinition({ name: `widgets.${group}` });
        if (definition.status?.conditions?.some((c) => c.type === 'Established' && c.status === 'True')) break;
    }
    const any = k8s.KubernetesObjectApi.makeApiClient(config);
    const made = await any.create({ apiVersion: `${group}/v1`, kind: 'Widget', metadata: { name: 'w', namespace }, spec: {} });
    assert.equal(made.spec.size, 1);
    const patched = await any.patch({ ...made, spec: { size: 2 } }, undefined, undefined, 'javascript', undefined, k8s.PatchStrategy.MergePatch);
    assert.equal(patched.spec.size, 2);
    const custom = config.makeApiClient(k8s.CustomObjectsApi);
    const listed = await custom.listNamespacedCustomObject({ group, version: 'v1', namespace, plural: 'widgets' });
    assert.equal(listed.items[0].spec.size, 2);
    await any.delete(made);
    await refused(404, any.read(made));
    const text = 'apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d, namespace: default}\nspec:\n  selector: {matchLabels: {a: b}}\n  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: i}]}\n';
    const deployment = await any.create(k8s.loadYaml(text));
    assert.equal(deployment.spec.replicas, 1);
    const apps = config.makeApiClient(k8s.AppsV1Api);
    const scale = await apps.readNamespacedDeploymentScale({ name: 'd', namespace });
    scale.spec.replicas = 4;
    assert.equal((await apps.replaceNamespacedDeploymentScale({ name: 'd', namespace, body: scale })).spec.replicas, 4);
});

test('the server tells its version and groups, and knows who asks', async () => {
    assert.equal((await config.makeApiClient(k8s.VersionApi).getCode()).minor, '36');
    const groups = await config.makeApiClient(k8s.ApisApi).getAPIVersions();
    assert.ok(groups.groups.some((group) => group.name === 'apps'));
    const review = await config.makeApiClient(k8s.AuthenticationV1Api).createSelfSubjectReview({ body: {} });
    assert.equal(review.status.userInfo.username, 'kubernetes-admin');
    const stranger = new k8s.KubeConfig();
    stranger.loadFromFile(process.env.KUBECONFIG);
    stranger.users = [{ name: stranger.users[0].name, token: 'nonsense' }];
    await refused(401, stranger.makeApiClient(k8s.CoreV1Api).listNamespace());
});
